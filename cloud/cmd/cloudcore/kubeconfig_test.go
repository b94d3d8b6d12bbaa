package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/clientcmd"
)

// A kubeconfig has the token of the account's Secret; one of another account is refused.
func TestAccountKubeconfig(t *testing.T) {
	const account, namespace = "cloudcore-approver", "skerry-system"
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account + "-kubeconfig", Annotations: map[string]string{corev1.ServiceAccountNameKey: account}},
		Type:       corev1.SecretTypeServiceAccountToken, Data: map[string][]byte{"token": []byte("secret"), "ca.crt": []byte("authority")},
	}
	client := fake.NewClientset(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}}, secret)
	raw, err := accountKubeconfig(t.Context(), client, "https://10.0.0.10:6443", account)
	if err != nil {
		t.Fatal(err)
	}
	c, err := clientcmd.Load(raw)
	if err != nil {
		t.Fatal(err)
	}
	if at := c.Clusters[c.Contexts[c.CurrentContext].Cluster]; at.Server != "https://10.0.0.10:6443" || string(at.CertificateAuthorityData) != "authority" || c.AuthInfos[account].Token != "secret" {
		t.Errorf("%s", raw)
	}
	if _, err := accountKubeconfig(t.Context(), client, "", "nosuch"); err == nil || !strings.Contains(err.Error(), `"nosuch" not found`) {
		t.Error(err)
	}
	secret.Annotations[corev1.ServiceAccountNameKey] = "other"
	if _, err := client.CoreV1().Secrets(namespace).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := accountKubeconfig(t.Context(), client, "", account); err == nil || !strings.Contains(err.Error(), "of another account") {
		t.Error(err)
	}
}
