package podnet_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/beehivetest"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/agent/agenttest"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/masquerade"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lan"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/wireguard"
	"github.com/skerry-io/skerry/edge/internal/site/contact"
	"github.com/skerry-io/skerry/edge/internal/site/peers"
	"github.com/skerry-io/skerry/edge/internal/site/podnet"
)

// deviceEnv marks the process that is a device's edgecore, as far as contact and pod network go:
// its interfaces must be in the network of its host.
const deviceEnv = "SKERRY_TEST_DEVICE"

const sitePort = 10552

// order is a line of a device's input: first its parameters, then each Site that
// the cloud sends.
type order struct {
	Node             string
	PodCIDR          string
	Dir              string
	Certificate, Key []byte
	Authority        []byte
	Site             []byte
}

// Decoded from a device's output: the condition of its Node.
type says struct{ Reason, Message string }

// memory is a disk.
type memory struct{}

func (memory) Load() (map[string][]byte, error)              { return nil, nil }
func (memory) Save(context.Context, map[string][]byte) error { return nil }

// nodeAPI takes patches of the Node and prints the condition in them.
type nodeAPI struct {
	*agenttest.API
	out io.Writer
}

func (a nodeAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPatch {
		return a.API.RoundTrip(r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var n corev1.Node
	if err := json.Unmarshal(body, &n); err != nil {
		return nil, err
	}
	for _, c := range n.Status.Conditions {
		if err := json.NewEncoder(a.out).Encode(says{c.Reason, c.Message}); err != nil {
			return nil, err
		}
	}
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(`{"kind":"Node","apiVersion":"v1"}`)),
	}, nil
}

// device is the process. It ends with its input.
func device(t *testing.T, in io.Reader, out io.Writer) {
	orders := json.NewDecoder(in)
	var first order
	if err := orders.Decode(&first); err != nil {
		t.Fatal(err)
	}
	key, err := x509.ParsePKCS8PrivateKey(first.Key)
	if err != nil {
		t.Fatal(err)
	}
	authority, err := x509.ParseCertificate(first.Authority)
	if err != nil {
		t.Fatal(err)
	}
	certificate := tls.Certificate{Certificate: [][]byte{first.Certificate}, PrivateKey: key}
	if certificate.Leaf, err = x509.ParseCertificate(first.Certificate); err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(authority)
	known := peers.New(first.Node, memory{})
	feed, runSite := known.Attach(linkstate.Link{}, func(context.Context, message.Message) error { return nil })
	take := func(raw []byte) {
		if len(raw) == 0 { // not reported yet
			return
		}
		var s topicpb.Site
		if err := proto.Unmarshal(raw, &s); err != nil {
			t.Fatal(err)
		}
		s.Digest = raw[:16]
		if err := feed(t.Context(), topic.Site.New(message.Resource{Name: first.Node}, &s)); err != nil {
			t.Fatal(err)
		}
	}
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer all.Wait()
	defer cancel()
	all.Go(func() { runSite(ctx) })
	moved := make(chan struct{}, 1)
	peers := contact.New(contact.Config{
		Node: first.Node, Boot: "boot", Port: sitePort, Site: known, Network: lan.New(), Memory: memory{}, RunFile: filepath.Join(first.Dir, "contact"),
		Trust: contact.Trust{
			Certificate: func() (*tls.Certificate, error) { return &certificate, nil }, Authorities: func() *x509.CertPool { return pool },
			Linked: func() bool { return true }, Now: time.Now,
		},
		Changed: func(string) {
			select {
			case moved <- struct{}{}:
			default:
			}
		},
	})
	if err := peers.Load(ctx); err != nil {
		t.Fatal(err)
	}
	all.Go(func() {
		if err := peers.Serve(ctx, func() {}); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	})
	api := nodeAPI{agenttest.NewAPI(), out}
	api.Put(t, "nodes", &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: first.Node}, Spec: corev1.NodeSpec{PodCIDR: first.PodCIDR, PodCIDRs: []string{first.PodCIDR}},
	})
	config := api.Config()
	config.Transport = api
	beehivetest.Run(t, nil, beehive.Entry{Module: podnet.New(podnet.Config{
		NodeName: first.Node, API: config, Site: known, At: peers.Address, LAN: lan.New(), Masquerade: masquerade.New(), CNIDir: first.Dir, Changed: moved,
		Routes:    func() (*netroute.Driver, error) { return netroute.Open(netroute.Config{Protocol: podnet.Protocol}) },
		WireGuard: wireguard.New(), TunnelPort: sitePort + 1, Tunnel: peers.Tunnel, SetTunnel: peers.SetTunnel,
	})})
	for take(first.Site); ; {
		var next order
		if err := orders.Decode(&next); err != nil {
			return
		}
		take(next.Site)
	}
}
