package join_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/wslink"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/ca"
)

// editor stands between a device and cloudcore, with the identity of each towards the other: it
// changes the features that they list, and counts the messages that pass.
type editor struct {
	*testing.T
	listener *wslink.Listener
	dialer   *wslink.Dialer
	cloud    string // its websocket's address
	// hello and welcome change the lists of a session.
	hello, welcome func([]string) []string

	mu     sync.Mutex
	passed map[message.Key]int // of this session, both ways
	listed []string            // in the Welcome, as it came
	close  func()              // the links of the session
}

// unheard is a feature of a release that is not written yet.
const unheard = "levitation.v2"

func addUnheard(list []string) []string { return append(slices.Clone(list), unheard) }

// without also leaves a feature out.
func without(feature string) func([]string) []string {
	return func(list []string) []string {
		return addUnheard(slices.DeleteFunc(slices.Clone(list), func(f string) bool { return f == feature }))
	}
}

// newEditor listens for a node at an address.
func newEditor(t *testing.T, s *system, node string, address netip.AddrPort) *editor {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	secret, err := s.plane.Client().CoreV1().Secrets("skerry-system").Get(t.Context(), "skerry-ca", metav1.GetOptions{})
	check(err)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	check(errors.Join(os.WriteFile(cert, secret.Data[corev1.TLSCertKey], 0o600), os.WriteFile(key, secret.Data[corev1.TLSPrivateKeyKey], 0o600)))
	pair := func(cert, key []byte, err error) func() (*tls.Certificate, error) {
		t.Helper()
		check(err)
		p, err := tls.X509KeyPair(cert, key)
		check(err)
		return func() (*tls.Certificate, error) { return &p, nil }
	}
	serving, serverKey, err := ca.Server(cert, key, pkix.Name{CommonName: "cloudcore"}, nil, address.Addr())
	asCloud := pair(serving, serverKey, err)
	own, ownKey, err := s.plane.Sign(pkix.Name{CommonName: pki.NodeUserPrefix + node, Organization: []string{pki.NodesGroup}})
	asNode := pair(own, ownKey, err)
	clients, roots := x509.NewCertPool(), x509.NewCertPool()
	clients.AppendCertsFromPEM(s.plane.CA())
	roots.AppendCertsFromPEM(secret.Data[corev1.TLSCertKey])

	e := &editor{T: t, cloud: s.websocket, close: func() {}}
	e.listener, err = wslink.Listen(t.Context(), address.String(), wslink.ListenConfig{
		Link: link.Default().OfCloud(), Table: topic.NewTable(), TLS: pki.ServerTLS(pki.Server{Certificate: asCloud, ClientCAs: func() *x509.CertPool { return clients }}),
	})
	check(err)
	e.dialer, err = wslink.NewDialer(wslink.DialConfig{
		Link: link.Default().OfEdge(), Table: topic.NewTable(), TLS: pki.ClientTLS(pki.Client{Roots: roots, Certificate: asNode}),
	})
	check(err)
	e.session(addUnheard, addUnheard)
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := e.listener.Accept(t.Context())
			if err != nil {
				return
			}
			served.Go(func() { e.serve(conn) })
		}
	})
	t.Cleanup(func() {
		e.end()
		check(e.listener.Close())
		served.Wait()
	})
	return e
}

// session ends the session, and has the next one begin with other lists and no messages.
func (e *editor) session(hello, welcome func([]string) []string) {
	e.mu.Lock()
	e.hello, e.welcome, e.passed, e.listed = hello, welcome, map[message.Key]int{}, nil
	e.mu.Unlock()
	e.end()
}

func (e *editor) end() {
	e.mu.Lock()
	end := e.close
	e.close = func() {}
	e.mu.Unlock()
	end()
}

// serve passes the messages of a link on.
func (e *editor) serve(device link.Conn) {
	ctx := e.Context()
	cloud, err := e.dialer.Dial(ctx, e.cloud)
	if err != nil {
		_ = device.Close(link.CloseShutdown, "the cloud can't be reached")
		return
	}
	end := func() {
		_ = device.Close(link.CloseShutdown, "the test ends this session")
		_ = cloud.Close(link.CloseShutdown, "the test ends this session")
	}
	e.mu.Lock()
	passed, hello, welcome := e.passed, e.hello, e.welcome
	e.close = end
	e.mu.Unlock()
	pass := func(from, to link.Conn) {
		defer end()
		for {
			m, err := from.Receive(ctx)
			if err != nil {
				return
			}
			e.mu.Lock()
			passed[m.Key()]++
			switch content := m.Content.(type) {
			case *topicpb.Hello:
				content.Features = hello(content.GetFeatures())
			case *topicpb.Welcome:
				e.listed = content.GetFeatures()
				content.Features = welcome(content.GetFeatures())
			}
			e.mu.Unlock()
			if to.Send(ctx, m) != nil {
				return
			}
		}
	}
	var both sync.WaitGroup
	both.Go(func() { pass(device, cloud) })
	pass(cloud, device)
	both.Wait()
}

// count returns how many messages of a topic passed in this session.
func (e *editor) count(key message.Key) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.passed[key]
}

// Each end lists a feature that the other has never heard of: the session works, both ways, and has
// no message that neither release knows. Samples of metrics are sent to a cloud that lists
// FeatureMetrics, and to no other, although they are due.
func TestFleet_03_FeaturesThatOneEndDoesNotHave(t *testing.T) {
	const node, address = "featured", "127.43.3.1"
	plane := cluster.Shared(t)
	plane.Apply(t, "manifests/crds")
	join, websocket := cluster.FreeAddress(t, "tcp"), cluster.FreeAddress(t, "tcp")
	s := newSystemWith(t, plane, fmt.Sprintf("advertise: [127.0.0.1]\ndevices: {listen: \"\"}\nhub: {websocket: {listen: %q}, quic: {listen: \"\"}}\njoin: {listen: %q}\n", websocket, join))
	s.join, s.websocket = join, websocket
	d := newDevice(t)
	d.configure(t, websocket)
	if _, errs, code := s.edge(t, d.config, s.token(t), node, s.join); code != 0 {
		t.Fatalf("join: exit code %d, %s", code, errs)
	}
	_, port, err := net.SplitHostPort(websocket)
	if err != nil {
		t.Fatal(err)
	}
	e := newEditor(t, s, node, netip.MustParseAddrPort(net.JoinHostPort(address, port)))
	d.configure(t, websocket, address)
	text, err := os.ReadFile(d.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.config, append(text, "  nodeMetrics: {interval: 1s, sendInterval: 1s}\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	d.work(t, []string{"", "", s.hollowedge})
	ns := d.gives(t, s, node, node)
	metrics := topic.NodeMetrics.Key()
	cluster.Eventually(t, "samples of metrics", func(context.Context) error {
		if e.count(metrics) == 0 {
			return errors.New("none came")
		}
		return nil
	})
	e.mu.Lock()
	listed := e.listed
	e.mu.Unlock()
	if !slices.Contains(listed, protocol.FeatureMetrics) || slices.Contains(listed, unheard) {
		t.Errorf("cloudcore lists %v", listed)
	}

	e.session(addUnheard, without(protocol.FeatureMetrics))
	waiting := func(ctx context.Context) (n int, err error) {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(filepath.Dir(d.socket), "edge.sock"))
		}}}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://edgecore/skerry/v1/status", http.NoBody)
		if err != nil {
			return 0, err
		}
		answer, err := client.Do(r)
		if err != nil {
			return 0, err
		}
		defer answer.Body.Close()
		var status struct{ NodeMetrics struct{ Waiting int } }
		err = json.NewDecoder(answer.Body).Decode(&status)
		return status.NodeMetrics.Waiting, err
	}
	cluster.Eventually(t, "samples that are due, in a session", func(ctx context.Context) error {
		n, err := waiting(ctx)
		if err == nil && (n < 5 || e.count(topic.Welcome.Key()) == 0) {
			err = fmt.Errorf("%d samples wait", n)
		}
		return err
	})
	// The session works both ways, and whatever was due before this has passed.
	if _, err := d.kubelet.CoreV1().Events(ns).Create(t.Context(), &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: node + ".1"}, Reason: "Fed", Type: corev1.EventTypeNormal, Count: 1, Source: corev1.EventSource{Component: "kubelet", Host: node},
		FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(), InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: ns, Name: "pod-" + node},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, "an event to arrive", func(ctx context.Context) error {
		list, err := plane.Client().CoreV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: "reason=Fed"})
		if err == nil && len(list.Items) == 0 {
			err = errors.New("it is not there")
		}
		return err
	})
	if _, err := plane.Client().CoreV1().Secrets(ns).Patch(t.Context(), "secret-"+node, "application/merge-patch+json", []byte(`{"stringData":{"k":"later"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, "a Secret's change to arrive", func(ctx context.Context) error {
		secret, err := d.kubelet.CoreV1().Secrets(ns).Get(ctx, "secret-"+node, metav1.GetOptions{})
		if err == nil && string(secret.Data["k"]) != "later" {
			err = fmt.Errorf("it has %q", secret.Data["k"])
		}
		return err
	})
	if n := e.count(metrics); n > 0 {
		t.Errorf("%d messages with metrics were sent to a cloud that does not list %s", n, protocol.FeatureMetrics)
	}
	if n := e.count(topic.Hello.Key()); n != 1 {
		t.Errorf("the session was opened %d times", n)
	}
	log, err := os.ReadFile(filepath.Join(d.dir, "log"))
	if err != nil || strings.Contains(string(log), unheard) {
		t.Errorf("the device's log names the feature: %v", err)
	}
}
