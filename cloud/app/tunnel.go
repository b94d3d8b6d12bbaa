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

	"github.com/skerry-io/skerry/cloud/internal/access/artefacts"
	"github.com/skerry-io/skerry/cloud/internal/access/console"
	"github.com/skerry-io/skerry/cloud/internal/access/tunnel"
	"github.com/skerry-io/skerry/common/pki"
)

// newTunnel makes the way to the kubelets of edge nodes, whose streams the sessions carry.
func newTunnel(c *cluster, trust *trustWing, core *coreWing, p *ports, programs *artefacts.Server) (_ *tunnel.Tunnel, w wing, err error) {
	advertise := c.config.Tunnel.Advertise
	if advertise == "" {
		if advertise, err = ownAddress(p.tunnel, c.client.Config().Host); err != nil {
			return nil, w, fmt.Errorf("tunnel.advertise is empty, and this host's address can't be determined: %w", err)
		}
	}
	key, err := trust.ca.Derive("skerry tunnel announcement")
	if err != nil {
		return nil, w, err
	}
	announcer := tunnel.NewAnnouncer(key, c.instance, advertise)
	core.relay.Advertise(func(node types.NodeName) string { return announcer.Announce(node, time.Now()) })
	if c.config.Tunnel.Endpoint.HideAddresses {
		core.relay.HideAddresses()
	}
	client := c.client.Kubernetes()
	consoles := console.New(console.Config{Machines: c.client.Dynamic(), Review: c.access.Review, Dial: console.Dialer(c.client.AsNode)})
	peer := pki.ClientTLS(pki.Client{Roots: pki.Pool(trust.ca.Trusted...), Certificate: trust.ca.Peer(tunnel.PeerName).Certificate})
	peer.ServerName = c.config.Advertise[0] // every replica serves under the same names
	nodes := tunnel.NewNodes(core.informers, cloudAddresses(c.config.Advertise, c.client.Config().Host))
	t := tunnel.New(tunnel.Config{
		Instance: c.instance, Nodes: nodes, AnnounceKey: key, Peer: peer, PeerCA: trust.ca.Certificate, Clients: c.config.Tunnel.Clients,
		Leases: func(ctx context.Context, node types.NodeName) (*coordinationv1.Lease, error) {
			return client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, string(node), metav1.GetOptions{})
		},
		Accept: func(ctx context.Context, node types.NodeName, target string) (net.Conn, error) {
			if strings.HasPrefix(target, artefacts.Prefix) {
				return programs.Accept(ctx, node, target)
			}
			return consoles.Accept(ctx, node, target)
		},
	})
	w.carried = append(w.carried, t)
	w.collectors = append(w.collectors, consoles, t)
	w.entries = append(w.entries, restarted("nodes", nodes.Run), serving("tunnel", func(ctx context.Context) error {
		return t.Serve(ctx, tls.NewListener(p.tunnel, tunnelTLS(trust)))
	}))
	if p.endpoint != nil {
		w.entries = append(w.entries, serving("endpoint", func(ctx context.Context) error { return t.ServeNames(ctx, p.endpoint) }))
	}
	return t, w, nil
}

// cloudAddresses are those by which edges reach the cloud, and cloudcore kube-apiserver, as far as
// they are no names.
func cloudAddresses(advertised []string, apiserver string) []netip.Addr {
	var all []netip.Addr
	hosts := slices.Clone(advertised)
	if server, err := url.Parse(apiserver); err == nil {
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
func ownAddress(l net.Listener, apiserver string) (string, error) {
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return "", err
	}
	server, err := url.Parse(apiserver)
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

// tunnelTLS is for kube-apiserver, whose certificate the cluster's CA has signed, and the other
// replicas, whose ours has.
func tunnelTLS(trust *trustWing) *tls.Config {
	return pki.ServerTLS(pki.Server{
		Certificate: trust.serving.Certificate, Protocols: []string{"http/1.1"},
		ClientCAs: func() *x509.CertPool {
			pool := trust.clientCA.Pool()
			if pool == nil {
				return nil
			}
			pool = pool.Clone()
			pool.AddCert(trust.ca.Certificate)
			return pool
		},
	})
}
