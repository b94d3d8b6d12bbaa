package app

import (
	"crypto/x509"
	"os"
	"time"

	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/edge/internal/optional/statusserver"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
	"github.com/skerry-io/skerry/edge/internal/setup/join"
	"github.com/skerry-io/skerry/edge/internal/site/peers"
)

// newStatusServer makes the server of this device's pages.
func newStatusServer(c edgeconfig.StatusServer, node string, client *rest.Config, identity *join.Identity, now func() time.Time, contact func() (bool, time.Time), leader func() any, current func() *peers.Site) (*statusserver.Server, error) {
	listen, peers := c.Addresses()
	return statusserver.New(statusserver.Config{
		NodeName: node, ClusterID: c.ClusterID, Listen: listen, Peers: peers, API: client, Contact: contact, Leader: leader, InstallLog: c.InstallLog,
		Trust: statusserver.Trust{Certificate: identity.Certificate, Authorities: func() *x509.CertPool { return authorities(identity.ClientCAFile()) }, Now: now, Admits: func(cert *x509.Certificate) error {
			s := current()
			if s == nil || identity.Node() != "" && s.Member(string(identity.Node())) == nil {
				return nil // this device is in no site: all nodes are alike
			}
			_, err := s.Admits(cert)
			return err
		}},
	})
}

// authorities reads the CAs of the cluster's client certificates, which the cloud may have changed;
// nil: unknown.
func authorities(file string) *x509.CertPool {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	certs, err := pki.ParseCertificates(raw)
	if err != nil || len(certs) == 0 {
		return nil
	}
	return pki.Pool(certs...)
}
