package tunnel_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/access/tunnel"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/fence"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/trust/join"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/pki"
	common "github.com/skerry-io/skerry/common/tunnel"
)

func node(name string, edge bool, addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1"}}
	if edge {
		n.Labels = map[string]string{v1alpha1.EdgeOwnLabel: ""}
	}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
	if !edge {
		n.Spec.PodCIDRs = []string{"10.244.1.0/24"}
	}
	return n
}

// collections is two stores.
type collections struct{ store, services *kube.Store }

func (c collections) Open(resource schema.GroupVersionResource) (*kube.Store, func()) {
	if resource.Resource != "nodes" {
		return c.services, func() {}
	}
	return c.store, func() {}
}

func nodes(t *testing.T, all ...*corev1.Node) *tunnel.Nodes {
	t.Helper()
	store := kube.NewStore(corev1.SchemeGroupVersion.WithResource("nodes"))
	objects := make([]runtime.Object, len(all))
	for i, n := range all {
		objects[i] = n
	}
	if err := store.Replace(objects); err != nil {
		t.Fatal(err)
	}
	services := kube.NewStore(networkingv1.SchemeGroupVersion.WithResource("servicecidrs"))
	if err := services.Replace([]runtime.Object{&networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", UID: "uid-cidr", ResourceVersion: "1"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}},
	}}); err != nil {
		t.Fatal(err)
	}
	n := tunnel.NewNodes(collections{store, services}, []netip.Addr{netip.MustParseAddr("198.51.100.1")})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for _, have := range all { // until Run has read them
		for {
			if to, err := n.Find(have.Name, "10250"); err != nil || to != have.Name || len(have.Status.Addresses) == 0 {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	return n
}

func TestNodes_Find(t *testing.T) {
	n := nodes(t,
		node("edge1", true, "10.0.0.1"), node("edge2", true, "192.168.1.10"), node("edge3", true, "192.168.1.10"),
		node("plain1", false, "172.16.0.1"),
		node("liar", true, "172.16.0.1", "10.96.0.10", "10.244.1.7", "198.51.100.1"))
	for name, test := range map[string]struct{ host, port, want, refusal string }{
		"an edge's name":         {host: "edge1", port: "10250", want: "edge edge1"},
		"an edge's address":      {host: "10.0.0.1", port: "10250", want: "edge edge1"},
		"the same in IPv6":       {host: "::ffff:10.0.0.1", port: "10250", want: "edge edge1"},
		"not its kubelet":        {host: "edge1", port: "22", refusal: "its kubelet alone"},
		"another service there":  {host: "10.0.0.1", port: "443", want: "10.0.0.1"},
		"two edges' address":     {host: "192.168.1.10", port: "10250", refusal: "the address of edge2 and of edge3"},
		"one of the two":         {host: "edge3", port: "10250", want: "edge edge3"},
		"an ordinary node":       {host: "plain1", port: "10250", want: "172.16.0.1"},
		"claimed by an edge too": {host: "172.16.0.1", port: "10250", want: "172.16.0.1"},
		"a service":              {host: "10.96.0.10", port: "443", want: "10.96.0.10"},
		"a kubelet's port there": {host: "10.96.0.10", port: "10250", want: "10.96.0.10"},
		"a pod's address":        {host: "10.244.1.7", port: "10250", want: "10.244.1.7"},
		"the cloud's":            {host: "198.51.100.1", port: "10250", want: "198.51.100.1"},
		"a name outside":         {host: "hook.example.com", port: "443", want: "hook.example.com"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := n.Find(test.host, test.port)
			if test.refusal != "" {
				if err == nil || !strings.Contains(err.Error(), test.refusal) {
					t.Errorf("got %q, %v, want a refusal with %q", got, err, test.refusal)
				}
				return
			}
			if err != nil || got != test.want {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
		})
	}
}

// session is a cloudhub.Session on a link.
type session struct {
	cloudhub.Session
	link.Conn
	node  types.NodeName
	epoch uint64
	heard atomic.Int64
}

func (s *session) LastHeard() time.Time { return time.Unix(0, s.heard.Load()) }

func (s *session) Node() types.NodeName                              { return s.node }
func (s *session) Epoch() uint64                                     { return s.epoch }
func (s *session) Info() link.Info                                   { return s.Conn.Info() }
func (s *session) Done() <-chan struct{}                             { return s.Conn.Done() }
func (s *session) Send(ctx context.Context, m message.Message) error { return s.Conn.Send(ctx, m) }
func (s *session) Close(code link.CloseCode, reason string)          { _ = s.Conn.Close(code, reason) }

// attach gives a replica the link of a node, whose kubelet answers by accept. The returned
// function ends it.
func attach(t *testing.T, r *replica, name types.NodeName, accept func(context.Context, string) (net.Conn, error)) (cut func()) {
	t.Helper()
	cut, _ = attachOver(t, r, name, accept, linktest.PipeOptions{})
	return cut
}

func attachOver(t *testing.T, r *replica, name types.NodeName, accept func(context.Context, string) (net.Conn, error), pipe linktest.PipeOptions) (
	cut func(), ended <-chan struct{}) {
	t.Helper()
	edgeConn, cloudConn := linktest.Pipe(t, pipe)
	edge := common.New(edgeConn, common.Config{Peer: "the cloud", Edge: true, Accept: accept})
	mux := message.NewMux()
	own := &session{Conn: cloudConn, node: name, epoch: 1}
	service := r.tunnel.Attach(own, mux)
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { _ = cloudhub.Serve(ctx, service) })
	all.Go(func() { _ = edge.Run(ctx) })
	for _, end := range []struct {
		conn   link.Conn
		handle func(context.Context, message.Message) error
	}{{cloudConn, mux.Dispatch}, {edgeConn, edge.Handle}} {
		all.Go(func() {
			for {
				m, err := end.conn.Receive(ctx)
				if err != nil {
					return
				}
				if end.conn == cloudConn {
					own.heard.Store(time.Now().UnixNano())
				}
				if err := end.handle(ctx, m); err != nil {
					t.Error(err)
				}
			}
		})
	}
	cut = sync.OnceFunc(func() {
		_ = edgeConn.Close(link.CloseShutdown, "the test cut it")
		cancel()
		all.Wait()
	})
	t.Cleanup(cut)
	for { // until it is known
		if conn, err := r.tunnel.Dial(t.Context(), name); err == nil {
			_ = conn.Close()
			return cut, cloudConn.Done()
		}
	}
}

// hello is a kubelet that sends its name and echoes.
func hello(name string) func(context.Context, string) (net.Conn, error) {
	return func(context.Context, string) (net.Conn, error) {
		a, b := net.Pipe()
		go func() {
			_, _ = io.WriteString(b, name+"\n")
			_, _ = io.Copy(b, b)
			_ = b.Close()
		}()
		return a, nil
	}
}

// replica is one cloudcore's tunnel, served on loopback.
type replica struct {
	tunnel  *tunnel.Tunnel
	address string
}

// system is replicas, the CAs, and the Leases.
type system struct {
	t       *testing.T
	ca      *join.CA
	cluster *join.CA // stands for the cluster's: all that counts is that it is another one
	serving *join.Serving
	nodes   *tunnel.Nodes

	mu     sync.Mutex
	leases map[types.NodeName]*coordinationv1.Lease
}

func newSystem(t *testing.T) *system {
	t.Helper()
	ca, err := join.LoadCA(t.Context(), fake.NewClientset())
	if err != nil {
		t.Fatal(err)
	}
	serving, err := ca.Serving([]string{"cloud.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := join.LoadCA(t.Context(), fake.NewClientset())
	if err != nil {
		t.Fatal(err)
	}
	return &system{t: t, ca: ca, cluster: cluster, serving: serving, leases: map[types.NodeName]*coordinationv1.Lease{},
		nodes: nodes(t, node("edge1", true, "10.0.0.1"), node("plain1", false, "127.0.0.1"))}
}

func (w *system) lease(name types.NodeName, r *replica, instance string, renewed time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leases[name] = &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{fence.TunnelAnnotation: w.announce(name, r.address, instance, renewed), fence.InstanceAnnotation: instance}},
		Spec:       coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: renewed}},
	}
}

// announceKey is the replicas' common key.
var announceKey = [32]byte{1}

func (w *system) announce(name types.NodeName, address, instance string, at time.Time) string {
	return tunnel.NewAnnouncer(announceKey, instance, address).Announce(name, at)
}

func (w *system) replica(instance string) *replica {
	w.t.Helper()
	peer := pki.ClientTLS(pki.Client{Roots: pki.Pool(w.ca.Certificate), Certificate: w.ca.Peer(tunnel.PeerName).Certificate})
	peer.ServerName = "cloud.example.com"
	r := &replica{tunnel: tunnel.New(tunnel.Config{
		Instance: instance, Nodes: w.nodes, AnnounceKey: announceKey, Peer: peer, PeerCA: w.ca.Certificate, Clients: []string{"kube-apiserver-kubelet-client"},
		Leases: func(_ context.Context, name types.NodeName) (*coordinationv1.Lease, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if l := w.leases[name]; l != nil {
				return l, nil
			}
			return nil, errors.New("no such Lease")
		},
	})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	r.address = l.Addr().String()
	secure := pki.ServerTLS(pki.Server{Certificate: w.serving.Certificate, Protocols: []string{"http/1.1"},
		ClientCAs: func() *x509.CertPool { return pki.Pool(w.ca.Certificate, w.cluster.Certificate) }})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.tunnel.Serve(ctx, tls.NewListener(l, secure)) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
		if n := r.tunnel.Streams(); n != 0 {
			w.t.Errorf("%d connections are left", n)
		}
	})
	return r
}

// ask sends a CONNECT as a client with a common name, and returns the status line and the
// connection behind it.
func (w *system) ask(r *replica, cn, method, target string) (string, io.ReadWriteCloser) {
	w.t.Helper()
	config := pki.ClientTLS(pki.Client{Roots: pki.Pool(w.ca.Certificate), Certificate: w.cluster.Peer(cn).Certificate})
	config.ServerName = "cloud.example.com"
	conn, err := tls.Dial("tcp", r.address, config)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	if _, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\n\r\n", method, target); err != nil {
		w.t.Fatal(err)
	}
	buffered := bufio.NewReader(conn)
	res, err := http.ReadResponse(buffered, &http.Request{Method: method})
	if err != nil {
		w.t.Fatal(err)
	}
	return res.Status, struct {
		io.Reader
		io.WriteCloser
	}{buffered, conn}
}

const apiserver = "kube-apiserver-kubelet-client"

func (w *system) talk(conn io.ReadWriter, name string) {
	w.t.Helper()
	if _, err := io.WriteString(conn, "ping"); err != nil {
		w.t.Fatal(err)
	}
	want := name + "\nping"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		w.t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestConnect_LeadsToAnEdge(t *testing.T) {
	w := newSystem(t)
	r := w.replica("a")
	attach(t, r, "edge1", hello("edge1"))
	for _, target := range []string{"edge1:10250", "10.0.0.1:10250"} {
		status, conn := w.ask(r, apiserver, http.MethodConnect, target)
		if !strings.HasPrefix(status, "200") {
			t.Fatalf("%s: %s", target, status)
		}
		w.talk(conn, "edge1")
	}
}

func TestConnect_DialsAllElse(t *testing.T) {
	w := newSystem(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "direct")
			_ = c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for _, host := range []string{"127.0.0.1", "plain1"} {
		status, conn := w.ask(w.replica("a"), apiserver, http.MethodConnect, host+":"+port)
		if got, err := io.ReadAll(conn); err != nil || string(got) != "direct" {
			t.Errorf("%s: %s: %q, %v", host, status, got, err)
		}
	}
}

func TestConnect_Refuses(t *testing.T) {
	w := newSystem(t)
	r := w.replica("a")
	for name, test := range map[string]struct{ cn, method, target, want string }{
		"a node's certificate": {"system:node:edge2", http.MethodConnect, "edge1:10250", "403 "},
		"a peer's name":        {tunnel.PeerName, http.MethodConnect, "edge1:10250", "403 "},
		"another method":       {apiserver, http.MethodGet, "/", "405 "},
		"no port":              {apiserver, http.MethodConnect, "edge1", "400 "},
		"another port":         {apiserver, http.MethodConnect, "edge1:22", "502 port 22 of edge1"},
		"never seen":           {apiserver, http.MethodConnect, "edge1:10250", "503 edge1 has no link"},
	} {
		t.Run(name, func(t *testing.T) {
			if status, _ := w.ask(r, test.cn, test.method, test.target); !strings.HasPrefix(status, test.want) {
				t.Errorf("got %q, want %q", status, test.want)
			}
		})
	}
}

func TestConnect_SaysSinceWhen(t *testing.T) {
	w := newSystem(t)
	r := w.replica("a")
	cut := attach(t, r, "edge1", hello("edge1"))
	cut()
	if status, _ := w.ask(r, apiserver, http.MethodConnect, "edge1:10250"); !strings.HasPrefix(status, "503 edge1 has had no link since ") {
		t.Errorf("got %q", status)
	}
	w.lease("edge1", r, "a", time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC))
	other := w.replica("a") // it has just started, and has no sessions
	if status, _ := w.ask(other, apiserver, http.MethodConnect, "edge1:10250"); !strings.Contains(status, "last heard of at 2020-01-02 03:04:05 UTC") {
		t.Errorf("got %q", status)
	}
}

func TestTunnel_09_TheReplicaThatIsAskedNeedNotHoldTheLink(t *testing.T) {
	w := newSystem(t)
	a, b := w.replica("a"), w.replica("b")
	cut := attach(t, b, "edge1", hello("edge1"))
	w.lease("edge1", b, "b", time.Now())
	for b.tunnel.Busy("edge1") { // until the stream by which attach tried it has gone
		goruntime.Gosched()
	}
	status, conn := w.ask(a, apiserver, http.MethodConnect, "edge1:10250")
	if !strings.HasPrefix(status, "200") {
		t.Fatal(status)
	}
	w.talk(conn, "edge1")
	if a.tunnel.Busy("edge1") || !b.tunnel.Busy("edge1") {
		t.Errorf("with a stream by the link at b, the node is busy at a: %v, at b: %v", a.tunnel.Busy("edge1"), b.tunnel.Busy("edge1"))
	}
	cut()
	if b.tunnel.Busy("edge1") {
		t.Error("a node without a link is busy")
	}
}

// A replica notices late that a device has gone to another one, which renewed its Lease before that
// and does so again only in a while.
func TestDial_TheLinkWentElsewhere(t *testing.T) {
	w := newSystem(t)
	a, b := w.replica("a"), w.replica("b")
	cut := attach(t, a, "edge1", hello("edge1"))
	attach(t, b, "edge1", hello("edge1"))
	w.lease("edge1", b, "b", time.Now().Add(-10*time.Second))
	cut()
	status, conn := w.ask(a, apiserver, http.MethodConnect, "edge1:10250")
	if !strings.HasPrefix(status, "200") {
		t.Fatal(status)
	}
	w.talk(conn, "edge1")
}

// The edgecore of a device was killed, so that the network did not end its link, and a fresh one is
// linked to another replica. The first replica has the older session until that has been idle for
// too long, and must not answer by it that the device is silent.
func TestDial_NewerSessionElsewhere(t *testing.T) {
	w := newSystem(t)
	a, b := w.replica("a"), w.replica("b")
	uplink := new(mute)
	attachOver(t, a, "edge1", hello("edge1"), linktest.PipeOptions{WrapEdge: func(c net.Conn) net.Conn { uplink.Conn = c; return uplink }})
	attach(t, b, "edge1", hello("edge1"))
	uplink.off.Store(true)
	w.lease("edge1", b, "b", time.Now())
	w.leases["edge1"].Annotations[fence.EpochAnnotation] = "2"
	for range 2 { // by asking the silent session, and knowing better
		status, conn := w.ask(a, apiserver, http.MethodConnect, "edge1:10250")
		if !strings.HasPrefix(status, "200") {
			t.Fatal(status)
		}
		w.talk(conn, "edge1")
	}
}

// The Lease of a replica that has died, or lost the link: no replica sends the question round.
func TestDial_TheHolderHasItNoMore(t *testing.T) {
	w := newSystem(t)
	a, b := w.replica("a"), w.replica("b")
	w.lease("edge1", b, "b", time.Now())
	if status, _ := w.ask(a, apiserver, http.MethodConnect, "edge1:10250"); !strings.HasPrefix(status, "503 edge1 has no link") {
		t.Errorf("got %q", status)
	}
	w.lease("edge1", &replica{address: "127.0.0.1:1"}, "c", time.Now())
	if status, _ := w.ask(a, apiserver, http.MethodConnect, "edge1:10250"); !strings.HasPrefix(status, "503 edge1 was last linked to c (127.0.0.1:1), which does not answer") {
		t.Errorf("got %q", status)
	}
}

func TestConnect_AKubeletThatIsDown(t *testing.T) {
	w := newSystem(t)
	r := w.replica("a")
	var down bytes.Buffer
	var mu sync.Mutex
	attach(t, r, "edge1", func(ctx context.Context, target string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if down.Len() > 0 {
			return nil, errors.New(down.String())
		}
		return hello("edge1")(ctx, target)
	})
	mu.Lock()
	down.WriteString("the kubelet does not answer:\nconnection refused")
	mu.Unlock()
	want := "503 edge1 refuses: the kubelet does not answer: connection refused"
	if status, _ := w.ask(r, apiserver, http.MethodConnect, "edge1:10250"); status != want {
		t.Errorf("got %q, want %q", status, want)
	}
}
