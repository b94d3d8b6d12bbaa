package join

import (
	"context"
	"crypto/x509"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
)

// ClientCA is the CA of the cluster's client certificates, nodes' among them. It follows
// its source.
type ClientCA struct {
	source caSource
	once   sync.Once
	known  chan struct{} // closed when the source has the CA for the first time
}

// caSource is where a CA comes from.
type caSource interface {
	dynamiccertificates.CAContentProvider
	dynamiccertificates.ControllerRunner
}

func newClientCA(source caSource) *ClientCA {
	c := &ClientCA{source: source, known: make(chan struct{})}
	source.AddListener(c)
	c.Enqueue() // a file has been read already
	return c
}

// Enqueue implements dynamiccertificates.Listener: the source has changed.
func (c *ClientCA) Enqueue() {
	if c.Pool() != nil {
		c.once.Do(func() { close(c.known) })
	}
}

// NewClientCA follows the CA that kube-apiserver itself publishes: the ConfigMap
// kube-system/extension-apiserver-authentication.
func NewClientCA(client kubernetes.Interface) (*ClientCA, error) {
	source, err := dynamiccertificates.NewDynamicCAFromConfigMapController("node-certificates",
		metav1.NamespaceSystem, "extension-apiserver-authentication", "client-ca-file", client)
	if err != nil {
		return nil, fmt.Errorf("following the cluster's client CA: %w", err)
	}
	return newClientCA(source), nil
}

// Run follows the source until ctx ends.
func (c *ClientCA) Run(ctx context.Context) error {
	c.source.Run(ctx, 1)
	return nil
}

// Pool is the CA now; nil until it is known.
func (c *ClientCA) Pool() *x509.CertPool {
	options, ok := c.source.VerifyOptions()
	if !ok {
		return nil
	}
	return options.Roots
}

// poolWait bounds Wait: a handshake may take longer than that.
const poolWait = 5 * time.Second

// Wait is Pool for a handshake that can wait a moment, up to five seconds. When cloudcore starts
// all its edges dial at once, mostly before the CA was read from kube-apiserver: a refusal would
// send each of them into its back-off.
func (c *ClientCA) Wait() *x509.CertPool {
	timer := time.NewTimer(poolWait)
	defer timer.Stop()
	select {
	case <-c.known:
	case <-timer.C:
	}
	return c.Pool()
}

// PEM is the CA now; nil until it is known.
func (c *ClientCA) PEM() []byte { return c.source.CurrentCABundleContent() }
