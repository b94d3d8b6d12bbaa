package trial

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/skerry-io/skerry/tests/cluster/lab"
)

const (
	systemNamespace = "skerry-system"
	// accountLifetime is the lifetime of cloudcore's token; it is not renewed, as a trial does not
	// live that long.
	accountLifetime = 30 * 24 * time.Hour
)

// Admin is the administrator's client configuration, for use on the machine.
func (t *Trial) Admin() (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", t.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("reading the trial's kubeconfig: %w", err)
	}
	cfg.QPS = -1
	return cfg, nil
}

func kubeconfig(server string, ca []byte, user *clientcmdapi.AuthInfo) ([]byte, error) {
	c := clientcmdapi.NewConfig()
	c.Clusters["trial"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	c.AuthInfos["trial"] = user
	c.Contexts["trial"] = &clientcmdapi.Context{Cluster: "trial", AuthInfo: "trial"}
	c.CurrentContext = "trial"
	raw, err := clientcmd.Write(*c)
	if err != nil {
		return nil, fmt.Errorf("encoding a kubeconfig: %w", err)
	}
	return raw, nil
}

// accountKubeconfig is a kubeconfig of a ServiceAccount, with a token that is not renewed.
func accountKubeconfig(ctx context.Context, client kubernetes.Interface, admin *rest.Config, account string) ([]byte, error) {
	seconds := int64(accountLifetime / time.Second)
	token, err := client.CoreV1().ServiceAccounts(systemNamespace).CreateToken(ctx, account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("making the token of %s: %w", account, err)
	}
	return kubeconfig("https://"+lab.Cloud().String()+":"+apiPort, admin.CAData, &clientcmdapi.AuthInfo{Token: token.Status.Token})
}

// bringCA hands the CA to cloudcore, which would make one of its own otherwise.
func (t *Trial) bringCA(ctx context.Context, client kubernetes.Interface) error {
	cert, err := t.readHost(Cloud, egressCA)
	if err != nil {
		return err
	}
	key, err := t.readHost(Cloud, egressCAKey)
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Secrets(systemNamespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "skerry-ca"}, Type: corev1.SecretTypeTLS, Immutable: new(true),
		Data: map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("making cloudcore's CA: %w", err)
	}
	return nil
}
