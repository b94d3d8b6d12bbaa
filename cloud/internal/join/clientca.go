package join

import (
	"context"
	"crypto/x509"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
)

// ClientCA is the CA of the cluster's client certificates, nodes' among them. It follows its source.
type ClientCA struct {
	source interface {
		dynamiccertificates.CAContentProvider
		dynamiccertificates.ControllerRunner
	}
}

// NewClientCA follows what kube-apiserver itself publishes: the ConfigMap kube-system/extension-apiserver-authentication.
func NewClientCA(client kubernetes.Interface) (*ClientCA, error) {
	source, err := dynamiccertificates.NewDynamicCAFromConfigMapController("node-certificates",
		metav1.NamespaceSystem, "extension-apiserver-authentication", "client-ca-file", client)
	if err != nil {
		return nil, fmt.Errorf("following the cluster's client CA: %w", err)
	}
	return &ClientCA{source: source}, nil
}

// ClientCAFromFile follows a PEM file instead, for clusters that publish no client CA.
func ClientCAFromFile(path string) (*ClientCA, error) {
	source, err := dynamiccertificates.NewDynamicCAContentFromFile("node-certificates", path)
	if err != nil {
		return nil, fmt.Errorf("reading the client CA: %w", err)
	}
	return &ClientCA{source: source}, nil
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

// PEM is the CA now; nil until it is known.
func (c *ClientCA) PEM() []byte { return c.source.CurrentCABundleContent() }
