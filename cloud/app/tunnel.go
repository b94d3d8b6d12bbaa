package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/cloud/internal/access/artefacts"
	"github.com/skerry-io/skerry/cloud/internal/access/console"
	"github.com/skerry-io/skerry/cloud/internal/access/rescue"
	"github.com/skerry-io/skerry/cloud/internal/access/tunnel"
	"github.com/skerry-io/skerry/cloud/internal/controllers/drain"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/protocol"
)

// artefactParts are the repository of programs, and the rescue of devices whose protocol cloudcore
// does not support.
func (a *App) artefactParts() ([]beehive.Entry, error) {
	a.artefacts = artefacts.New(a.config.Artefacts.Dir)
	a.rescue = rescue.New(rescue.Config{
		Client: a.client, Protocols: protocol.Ours(), Artefact: a.artefacts.Accept, Prefix: artefacts.Prefix, Merge: drain.Merge,
	})
	a.collectors = append(a.collectors, a.artefacts)
	return nil, nil
}

// newTunnel makes the way to the kubelets of edge nodes.
func (a *App) newTunnel() ([]beehive.Entry, error) {
	advertise := a.config.Tunnel.Advertise
	if advertise == "" {
		var err error
		if advertise, err = a.ownAddress(); err != nil {
			return nil, fmt.Errorf("tunnel.advertise is empty, and this host's address can't be determined: %w", err)
		}
	}
	key, err := a.ca.Derive("skerry tunnel announcement")
	if err != nil {
		return nil, err
	}
	announcer := tunnel.NewAnnouncer(key, a.instance, advertise)
	a.relay.Advertise(func(node types.NodeName) string { return announcer.Announce(node, time.Now()) })
	if a.config.Tunnel.Endpoint.HideAddresses {
		a.relay.HideAddresses()
	}
	client := a.client.Kubernetes()
	consoles := console.New(console.Config{Machines: a.client.Dynamic(), Review: a.access.Review, Dial: console.Dialer(a.client.AsNode)})
	a.collectors = append(a.collectors, consoles)
	peer := pki.ClientTLS(pki.Client{Roots: pki.Pool(a.ca.Trusted...), Certificate: a.ca.Peer(tunnel.PeerName).Certificate})
	peer.ServerName = a.config.Advertise[0] // every replica serves under the same names
	a.nodes = tunnel.NewNodes(a.informers, a.cloudAddresses())
	a.tunnel = tunnel.New(tunnel.Config{
		Instance: a.instance, Nodes: a.nodes, AnnounceKey: key, Peer: peer, PeerCA: a.ca.Certificate, Clients: a.config.Tunnel.Clients,
		Leases: func(ctx context.Context, node types.NodeName) (*coordinationv1.Lease, error) {
			return client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, string(node), metav1.GetOptions{})
		},
		Accept: func(ctx context.Context, node types.NodeName, target string) (net.Conn, error) {
			if strings.HasPrefix(target, artefacts.Prefix) {
				return a.artefacts.Accept(ctx, node, target)
			}
			return consoles.Accept(ctx, node, target)
		},
	})
	a.carried = append(a.carried, a.tunnel)
	return nil, nil
}

// cloudAddresses are those by which edges reach the cloud, and cloudcore kube-apiserver, as far as
// they are no names.
func (a *App) cloudAddresses() []netip.Addr {
	var all []netip.Addr
	hosts := slices.Clone(a.config.Advertise)
	if server, err := url.Parse(a.client.Config().Host); err == nil {
		hosts = append(hosts, server.Hostname())
	}
	for _, host := range hosts {
		if ip, err := netip.ParseAddr(host); err == nil {
			all = append(all, ip.Unmap())
		}
	}
	return all
}

// ownAddress is the tunnel's listener as others see it: by the address from which this host reaches
// kube-apiserver. No packet is sent.
func (a *App) ownAddress() (string, error) {
	_, port, err := net.SplitHostPort(a.ports.tunnel.Addr().String())
	if err != nil {
		return "", err
	}
	server, err := url.Parse(a.client.Config().Host)
	if err != nil {
		return "", err
	}
	to := server.Host
	if server.Port() == "" {
		to = net.JoinHostPort(server.Hostname(), "443")
	}
	conn, err := net.Dial("udp", to)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(host, port), nil
}

// serveTunnel serves kube-apiserver, whose certificate the cluster's CA has signed, and the other
// replicas, whose ours has.
func (a *App) serveTunnel(ctx context.Context) error {
	secure := pki.ServerTLS(pki.Server{
		Certificate: a.serving.Certificate, Protocols: []string{"http/1.1"},
		ClientCAs: func() *x509.CertPool {
			pool := a.clientCA.Pool()
			if pool == nil {
				return nil
			}
			pool = pool.Clone()
			pool.AddCert(a.ca.Certificate)
			return pool
		},
	})
	return a.tunnel.Serve(ctx, tls.NewListener(a.ports.tunnel, secure))
}
