package names_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/edge/internal/core/agent/agenttest"
	"github.com/skerry-io/skerry/edge/internal/site/names"
	"github.com/skerry-io/skerry/edge/internal/site/serviceview"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// freePort is a port of the loopback interface that is free, for UDP and TCP.
func freePort(t *testing.T) netip.AddrPort {
	t.Helper()
	for range 20 {
		u, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		at := u.LocalAddr().(*net.UDPAddr).AddrPort()
		l, err := net.Listen("tcp", at.String())
		_ = u.Close()
		if err == nil {
			_ = l.Close()
			return at
		}
	}
	t.Fatal("no port is free")
	return netip.AddrPort{}
}

// system is the module on real sockets, with a real view of an edge API in memory.
type system struct {
	t   *testing.T
	api *agenttest.API
	at  netip.AddrPort
}

func newSystem(t *testing.T, api *agenttest.API, change func(*names.Config)) *system {
	t.Helper()
	corrected := make(chan struct{})
	close(corrected)
	view, err := serviceview.New(api.Config(), corrected)
	if err != nil {
		t.Fatal(err)
	}
	l := &system{t: t, api: api, at: freePort(t)}
	c := names.Config{
		Listen: l.at, Domain: "cluster.local", View: view, Upstream: func() []netip.AddrPort { return nil },
	}
	if change != nil {
		change(&c)
	}
	m := names.New(c)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { view.Follow(ctx) })
	running.Go(func() {
		if err := m.Serve(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return l
}

func (l *system) ask(network, name string, qtype uint16, edns bool) (*dns.Msg, error) {
	m := new(dns.Msg).SetQuestion(name, qtype)
	if edns {
		m.SetEdns0(4096, false)
	}
	c := &dns.Client{Net: network, Timeout: 20 * time.Second, UDPSize: 4096}
	r, _, err := c.Exchange(m, l.at.String())
	return r, err
}

// answer waits until the module listens.
func (l *system) answer(network, name string, qtype uint16) *dns.Msg {
	l.t.Helper()
	var r *dns.Msg
	poll.Eventually(l.t, "an answer", func(context.Context) (err error) {
		r, err = l.ask(network, name, qtype, true)
		return err
	})
	return r
}

func text(r *dns.Msg) string {
	lines := []string{dns.RcodeToString[r.Rcode]}
	for _, rr := range r.Answer {
		lines = append(lines, strings.Join(strings.Fields(rr.String()), " "))
	}
	slices.Sort(lines[1:])
	return strings.Join(lines, "\n")
}

func (l *system) synced() {
	l.t.Helper()
	poll.True(l.t, "the names to be known", func() bool {
		return l.answer("udp", "cluster.local.", dns.TypeSOA).Rcode == dns.RcodeSuccess
	})
}

func service(namespace, name string, change func(*corev1.ServiceSpec)) *corev1.Service {
	s := &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}},
	}
	change(&s.Spec)
	return s
}

func slice(namespace, name, of string, family discoveryv1.AddressType, all ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	port, portName, protocol := int32(8080), "http", corev1.ProtocolTCP
	return &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: of}},
		AddressType: family, Endpoints: all, Ports: []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &protocol}},
	}
}

func endpoint(address, host string, ready bool) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
	if host != "" {
		e.Hostname = &host
	}
	return e
}

func cluster(t *testing.T) *agenttest.API {
	t.Helper()
	api := agenttest.NewAPI()
	api.Put(t, "services", service("shop", "store", func(s *corev1.ServiceSpec) {
		s.ClusterIP, s.ClusterIPs = "10.96.0.9", []string{"10.96.0.9", "fd00:96::9"}
	}))
	api.Put(t, "services", service("shop", "db", func(s *corev1.ServiceSpec) { s.ClusterIP, s.ClusterIPs = "None", []string{"None"} }))
	api.Put(t, "services", service("shop", "all", func(s *corev1.ServiceSpec) { s.ClusterIP, s.PublishNotReadyAddresses = "None", true }))
	api.Put(t, "services", service("shop", "empty", func(s *corev1.ServiceSpec) { s.ClusterIP = "None" }))
	api.Put(t, "services", service("shop", "near", func(s *corev1.ServiceSpec) {
		s.Type, s.ExternalName, s.Ports = corev1.ServiceTypeExternalName, "store.shop.svc.cluster.local", nil
	}))
	api.Put(t, "services", service("shop", "loop", func(s *corev1.ServiceSpec) {
		s.Type, s.ExternalName, s.Ports = corev1.ServiceTypeExternalName, "loop.shop.svc.cluster.local", nil
	}))
	api.Put(t, "endpointslices", slice("shop", "db-1", "db", discoveryv1.AddressTypeIPv4, endpoint("10.244.1.5", "db-0", true), endpoint("10.244.2.6", "db-1", false)))
	api.Put(t, "endpointslices", slice("shop", "db-2", "db", discoveryv1.AddressTypeIPv6, endpoint("fd00::5", "db-0", true)))
	api.Put(t, "endpointslices", slice("shop", "all-1", "all", discoveryv1.AddressTypeIPv4, endpoint("10.244.1.7", "", false)))
	return api
}

// Kubernetes' DNS specification 1.1.0, name by name, over UDP and TCP.
func TestNames(t *testing.T) {
	l := newSystem(t, cluster(t), nil)
	l.synced()
	for _, c := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"store.shop.svc.cluster.local.", dns.TypeA, "NOERROR\nstore.shop.svc.cluster.local. 5 IN A 10.96.0.9"},
		{"STORE.shop.svc.Cluster.local.", dns.TypeA, "NOERROR\nSTORE.shop.svc.Cluster.local. 5 IN A 10.96.0.9"},
		{"store.shop.svc.cluster.local.", dns.TypeAAAA, "NOERROR\nstore.shop.svc.cluster.local. 5 IN AAAA fd00:96::9"},
		{"store.shop.svc.cluster.local.", dns.TypeMX, "NOERROR"},
		{"_http._tcp.store.shop.svc.cluster.local.", dns.TypeSRV, "NOERROR\n_http._tcp.store.shop.svc.cluster.local. 5 IN SRV 0 100 80 store.shop.svc.cluster.local."},
		{"_http._udp.store.shop.svc.cluster.local.", dns.TypeSRV, "NXDOMAIN"},
		{"9.0.96.10.in-addr.arpa.", dns.TypePTR, "NOERROR\n9.0.96.10.in-addr.arpa. 5 IN PTR store.shop.svc.cluster.local."},
		{"db.shop.svc.cluster.local.", dns.TypeA, "NOERROR\ndb.shop.svc.cluster.local. 5 IN A 10.244.1.5"},
		{"db.shop.svc.cluster.local.", dns.TypeAAAA, "NOERROR\ndb.shop.svc.cluster.local. 5 IN AAAA fd00::5"},
		{"db-0.db.shop.svc.cluster.local.", dns.TypeA, "NOERROR\ndb-0.db.shop.svc.cluster.local. 5 IN A 10.244.1.5"},
		{"db-1.db.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN"}, // not ready
		{
			"_http._tcp.db.shop.svc.cluster.local.", dns.TypeSRV,
			"NOERROR\n_http._tcp.db.shop.svc.cluster.local. 5 IN SRV 0 100 8080 db-0.db.shop.svc.cluster.local.\n" +
				"_http._tcp.db.shop.svc.cluster.local. 5 IN SRV 0 100 8080 db-0.db.shop.svc.cluster.local.",
		},
		{"5.1.244.10.in-addr.arpa.", dns.TypePTR, "NOERROR\n5.1.244.10.in-addr.arpa. 5 IN PTR db-0.db.shop.svc.cluster.local."},
		{
			"5.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.", dns.TypePTR,
			"NOERROR\n5.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa. 5 IN PTR db-0.db.shop.svc.cluster.local.",
		},
		{"all.shop.svc.cluster.local.", dns.TypeA, "NOERROR\nall.shop.svc.cluster.local. 5 IN A 10.244.1.7"},
		{"10-244-1-7.all.shop.svc.cluster.local.", dns.TypeA, "NOERROR\n10-244-1-7.all.shop.svc.cluster.local. 5 IN A 10.244.1.7"},
		{"empty.shop.svc.cluster.local.", dns.TypeA, "NOERROR"},
		{"10-244-1-9.shop.pod.cluster.local.", dns.TypeA, "NOERROR\n10-244-1-9.shop.pod.cluster.local. 5 IN A 10.244.1.9"},
		{"nonsense.shop.pod.cluster.local.", dns.TypeA, "NXDOMAIN"},
		{
			"near.shop.svc.cluster.local.", dns.TypeA,
			"NOERROR\nnear.shop.svc.cluster.local. 5 IN CNAME store.shop.svc.cluster.local.\nstore.shop.svc.cluster.local. 5 IN A 10.96.0.9",
		},
		{"near.shop.svc.cluster.local.", dns.TypeCNAME, "NOERROR\nnear.shop.svc.cluster.local. 5 IN CNAME store.shop.svc.cluster.local."},
		{"missing.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
		{"x.store.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
		{"shop.svc.cluster.local.", dns.TypeA, "NOERROR"}, // a name above existing names exists (RFC 8020)
		{"svc.cluster.local.", dns.TypeA, "NOERROR"},
		{"_tcp.store.shop.svc.cluster.local.", dns.TypeA, "NOERROR"},
		{"elsewhere.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
		{"cluster.local.", dns.TypeA, "NOERROR"},
		{"dns-version.cluster.local.", dns.TypeTXT, "NOERROR\ndns-version.cluster.local. 5 IN TXT \"1.1.0\""},
		{"example.com.", dns.TypeA, "SERVFAIL"}, // no upstream to ask
		{"notcluster.local.", dns.TypeA, "SERVFAIL"},
	} {
		for _, network := range []string{"udp", "tcp"} {
			r := l.answer(network, c.name, c.qtype)
			if diff := cmp.Diff(c.want, text(r)); diff != "" {
				t.Errorf("%s %s over %s (-want +got):\n%s", c.name, dns.TypeToString[c.qtype], network, diff)
			}
			if o := r.IsEdns0(); o == nil || o.UDPSize() != 1232 {
				t.Errorf("%s over %s: EDNS is %v", c.name, network, o)
			}
			if negative := len(r.Answer) == 0 && r.Rcode != dns.RcodeServerFailure; negative && (len(r.Ns) != 1 || r.Ns[0].Header().Ttl != 5) {
				t.Errorf("%s over %s: a resolver may not cache that there is none: %v", c.name, network, r.Ns)
			}
		}
	}
	if r := l.answer("udp", "loop.shop.svc.cluster.local.", dns.TypeA); r.Rcode != dns.RcodeServerFailure {
		t.Errorf("an ExternalName of itself: %s", text(r))
	}
	if r := l.answer("udp", "_http._tcp.db.shop.svc.cluster.local.", dns.TypeSRV); len(r.Extra) < 3 {
		t.Errorf("the addresses of SRV's targets are missing: %v", r.Extra)
	}
}

// An answer that is too long for UDP is cut with TC set, and whole over TCP; without EDNS 512
// bytes are the bound.
func TestNames_LongAnswers(t *testing.T) {
	api := cluster(t)
	var all []discoveryv1.Endpoint
	for i := range 100 {
		all = append(all, endpoint(fmt.Sprintf("10.244.9.%d", i+1), "", true))
	}
	api.Put(t, "services", service("shop", "many", func(s *corev1.ServiceSpec) { s.ClusterIP = "None" }))
	api.Put(t, "endpointslices", slice("shop", "many-1", "many", discoveryv1.AddressTypeIPv4, all...))
	l := newSystem(t, api, nil)
	l.synced()
	for _, c := range []struct {
		network string
		edns    bool
		most    int
		whole   bool
	}{{"udp", false, 512, false}, {"udp", true, 1232, false}, {"tcp", true, 65535, true}} {
		r, err := l.ask(c.network, "many.shop.svc.cluster.local.", dns.TypeA, c.edns)
		if err != nil {
			t.Fatal(err)
		}
		r.Compress = true
		if r.Truncated == c.whole || r.Len() > c.most || (len(r.Answer) == 100) != c.whole {
			t.Errorf("%s, EDNS %v: %d records, %d bytes, truncated %v", c.network, c.edns, len(r.Answer), r.Len(), r.Truncated)
		}
	}
}

// Before all names are synced no name of the cluster gets NXDOMAIN; other names are answered.
func TestSite_20_NotSyncedIsServfailNeverNxdomain(t *testing.T) {
	up := newUpstream(t)
	api := cluster(t)
	api.Unsync("endpointslices")
	l := newSystem(t, api, func(c *names.Config) { c.Upstream = up.servers })
	for _, name := range []string{"store.shop.svc.cluster.local.", "missing.shop.svc.cluster.local.", "x.cluster.local.", "9.0.96.10.in-addr.arpa."} {
		if r := l.answer("udp", name, dns.TypeA); r.Rcode != dns.RcodeServerFailure || len(r.Answer)+len(r.Ns) > 0 {
			t.Errorf("%s: %s, want SERVFAIL", name, text(r))
		}
	}
	if r := l.answer("udp", "www.example.com.", dns.TypeA); r.Rcode != dns.RcodeSuccess || len(r.Answer) != 1 {
		t.Errorf("a name of others: %s", text(r))
	}
	api.Sync("endpointslices")
	l.synced()
	if r := l.answer("udp", "missing.shop.svc.cluster.local.", dns.TypeA); r.Rcode != dns.RcodeNameError {
		t.Errorf("once all is known: %s, want NXDOMAIN", text(r))
	}
}

// upstream is a name server that counts, and can fall silent as one does behind a link
// that is down.
type upstream struct {
	at     netip.AddrPort
	asked  atomic.Int64
	silent atomic.Bool
	ttl    atomic.Uint32
}

func newUpstream(t *testing.T) *upstream {
	t.Helper()
	up := &upstream{}
	up.ttl.Store(3600)
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	up.at = conn.LocalAddr().(*net.UDPAddr).AddrPort()
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		up.asked.Add(1)
		if up.silent.Load() {
			return
		}
		r := new(dns.Msg)
		r.SetReply(q)
		if strings.HasPrefix(q.Question[0].Name, "no") {
			r.Rcode = dns.RcodeNameError
		} else {
			r.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: up.ttl.Load()}, A: net.IPv4(192, 0, 2, 1)}}
		}
		_ = w.WriteMsg(r)
	})
	server := &dns.Server{PacketConn: conn, Handler: handler}
	var running sync.WaitGroup
	running.Go(func() {
		if err := server.ActivateAndServe(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	t.Cleanup(func() { _ = conn.Close(); running.Wait() })
	return up
}

func (u *upstream) servers() []netip.AddrPort { return []netip.AddrPort{u.at} }

// With the upstream dead earlier questions are answered from memory, after their time too, with a
// TTL of 30 s; new ones fail at once; the upstream is not asked again and again; and it is
// used again when it is back.
func TestSite_21_UpstreamDeadAnswersFromMemory(t *testing.T) {
	up := newUpstream(t)
	l := newSystem(t, cluster(t), func(c *names.Config) { c.Upstream = up.servers })
	l.synced()
	const name = "www.example.com."
	if r := l.answer("udp", name, dns.TypeA); text(r) != "NOERROR\nwww.example.com. 3600 IN A 192.0.2.1" {
		t.Fatal(text(r))
	}
	if n := up.asked.Load(); n != 1 {
		t.Fatalf("the upstream was asked %d times", n)
	}
	up.ttl.Store(0) // expires immediately
	if r := l.answer("udp", "short.example.com.", dns.TypeA); r.Rcode != dns.RcodeSuccess {
		t.Fatal(text(r))
	}
	before := up.asked.Load()
	up.silent.Store(true)
	began := time.Now()
	var failed, stale int
	for i := range 200 {
		if r := l.answer("udp", fmt.Sprintf("new%d.example.com.", i), dns.TypeA); r.Rcode == dns.RcodeServerFailure {
			failed++
		}
		if r := l.answer("udp", "short.example.com.", dns.TypeA); text(r) == "NOERROR\nshort.example.com. 30 IN A 192.0.2.1" {
			stale++
		}
		if r := l.answer("udp", name, dns.TypeA); r.Rcode != dns.RcodeSuccess {
			t.Fatalf("an answer that holds for an hour: %s", text(r))
		}
	}
	if failed != 200 || stale != 200 {
		t.Errorf("%d of 200 new names failed, %d of 200 old ones were answered", failed, stale)
	}
	if asked, most := up.asked.Load()-before, 2+int64(time.Since(began)/(5*time.Second)); asked < 1 || asked > most {
		t.Errorf("the dead upstream was asked %d times by 400 queries, want one each 5 s: at most %d", asked, most)
	}
	up.silent.Store(false)
	up.ttl.Store(3600)
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		r := l.answer("udp", "back.example.com.", dns.TypeA)
		if r.Rcode == dns.RcodeSuccess {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the upstream is back, and %s", text(r))
		}
	}
}

// A zone's own name servers are asked for its names and for no other; a query does not come
// back to ourselves.
func TestZones(t *testing.T) {
	corp, rest := newUpstream(t), newUpstream(t)
	l := newSystem(t, cluster(t), func(c *names.Config) {
		c.Zones = []names.Zone{{Zone: "corp.example", Upstream: corp.servers()}}
		c.Upstream = func() []netip.AddrPort { return append([]netip.AddrPort{c.Listen}, rest.servers()...) }
	})
	l.synced()
	for name, by := range map[string]*upstream{"corp.example.": corp, "a.CORP.example.": corp, "notcorp.example.": rest, "example.": rest} {
		before := by.asked.Load()
		l.answer("udp", name, dns.TypeA)
		if by.asked.Load() != before+1 {
			t.Errorf("%s was asked of another", name)
		}
	}
}

// The error names the process that has the port.
func TestPortTaken(t *testing.T) {
	at := freePort(t)
	l, err := net.Listen("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	corrected := make(chan struct{})
	view, err := serviceview.New(agenttest.NewAPI().Config(), corrected)
	if err != nil {
		t.Fatal(err)
	}
	err = names.New(names.Config{Listen: at, Domain: "cluster.local", View: view}).Serve(t.Context())
	if err == nil || !strings.Contains(err.Error(), "names.test (pid ") {
		t.Errorf("%v, want an error that says who has it", err)
	}
}
