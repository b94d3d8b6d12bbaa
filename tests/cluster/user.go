package cluster

import (
	"context"
	"crypto/x509/pkix"
	"errors"
	"net/http"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/tests/cluster/ca"
	"github.com/skerry-io/skerry/tests/cluster/edges"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// User is a client configuration with a certificate for any user and groups, signed by the
// cluster's CA: with exactly that user's rights.
func (c *ControlPlane) User(t testing.TB, name string, groups ...string) *rest.Config {
	t.Helper()
	cert, key, err := c.Sign(pkix.Name{CommonName: name, Organization: groups})
	if err != nil {
		t.Fatal(err)
	}
	return &rest.Config{Host: c.Server, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: c.CA(), CertData: cert, KeyData: key}}
}

// Node is the client configuration of a node, as its kubelet would have it.
func (c *ControlPlane) Node(t testing.TB, name string) *rest.Config {
	t.Helper()
	return c.User(t, pki.NodeUserPrefix+name, pki.NodesGroup)
}

// ServiceAccount is a client configuration with a token of that account, which is made when
// it is not there.
func (c *ControlPlane) ServiceAccount(t testing.TB, namespace, name string) *rest.Config {
	t.Helper()
	accounts := c.Client().CoreV1().ServiceAccounts(namespace)
	_, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	token, err := accounts.CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return &rest.Config{Host: c.Server, QPS: -1, BearerToken: token.Status.Token, TLSClientConfig: rest.TLSClientConfig{CAData: c.CA()}}
}

// Sign issues a client certificate; both results are PEM.
func (c *ControlPlane) Sign(subject pkix.Name) (cert, key []byte, err error) {
	return ca.Client(c.CAFile(), c.CAKeyFile(), subject)
}

// Namespace makes a namespace with a fresh name, ready for pods, and deletes it with the test.
func (c *ControlPlane) Namespace(t testing.TB) string {
	t.Helper()
	client := c.Client()
	ns, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := client.CoreV1().Namespaces().Delete(context.Background(), ns.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("deleting namespace %s: %v", ns.Name, err)
		}
	})
	// Pods are refused until the controller made the default account and the CA's ConfigMap.
	Eventually(t, "the default ServiceAccount of "+ns.Name, func(ctx context.Context) error {
		if _, err := client.CoreV1().ServiceAccounts(ns.Name).Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return err
		}
		_, err := client.CoreV1().ConfigMaps(ns.Name).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err
	})
	return ns.Name
}

// AddNode is AddOrdinaryNode of a device that has joined: cloudcore may act as it, where its
// manifests are applied.
func (c *ControlPlane) AddNode(t testing.TB, name string) kubernetes.Interface {
	t.Helper()
	node := c.register(t, name, map[string]string{corev1.LabelHostname: name, v1alpha1.EdgeOwnLabel: ""})
	if err := edges.Allow(t.Context(), c.Client(), name); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return node
}

// AddOrdinaryNode registers a node as its own kubelet would and returns its client. It has no
// kubelet: pods bound to it stay Pending.
func (c *ControlPlane) AddOrdinaryNode(t testing.TB, name string) kubernetes.Interface {
	t.Helper()
	return c.register(t, name, map[string]string{corev1.LabelHostname: name})
}

func (c *ControlPlane) register(t testing.TB, name string, labels map[string]string) kubernetes.Interface {
	t.Helper()
	node := kubernetes.NewForConfigOrDie(c.Node(t, name))
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	if _, err := node.CoreV1().Nodes().Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := c.Client().CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("deleting node %s: %v", name, err)
		}
	})
	return node
}

// Eventually repeats try, with growing pauses, until it returns nil; after some minutes the test
// ends with its last error.
func Eventually(t testing.TB, what string, try func(context.Context) error) {
	t.Helper()
	const patience = 3 * time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := poll.Until(ctx, 250*time.Millisecond, try); err != nil {
		t.Fatalf("waited %v for %s: %v", patience, what, err)
	}
}

// WaitReady waits until a component is ready by its /readyz at that address, over plain HTTP.
func WaitReady(t testing.TB, what, address string) {
	t.Helper()
	Eventually(t, what+" is ready", func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		return nil
	})
}
