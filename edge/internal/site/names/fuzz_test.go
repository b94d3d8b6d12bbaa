package names_test

import (
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/skerry-io/skerry/edge/internal/core/agent/agenttest"
	"github.com/skerry-io/skerry/edge/internal/site/names"
	"github.com/skerry-io/skerry/edge/internal/site/serviceview"
)

// packed is a query as it travels.
func packed(f *testing.F, name string, change func(*dns.Msg)) []byte {
	f.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, dns.TypeA)
	if change != nil {
		change(m)
	}
	raw, err := m.Pack()
	if err != nil {
		f.Fatal(err)
	}
	return raw
}

// Whatever a pod sends as a query, and an upstream server as an answer to it, the reply is one to
// that query and can be packed.
func FuzzQuery(f *testing.F) {
	long := strings.Repeat(strings.Repeat("a", 63)+".", 3)
	add := func(query, reply []byte) {
		f.Add(query, reply, false)
		f.Add(query, reply, true)
	}
	answer := packed(f, "example.com.", func(m *dns.Msg) {
		m.Response = true
		for _, rr := range []string{"example.com. 60 IN A 192.0.2.1", "example.com. 4294967295 IN CNAME example.com.", "other. 1 IN TXT \"\\000'`$()\""} {
			r, err := dns.NewRR(rr)
			if err != nil {
				f.Fatal(err)
			}
			m.Answer = append(m.Answer, r)
		}
	})
	add(packed(f, "web.default.svc.cluster.local.", nil), answer)
	add(packed(f, "example.com.", nil), packed(f, "example.com.", func(m *dns.Msg) { // repeats no question
		m.Response, m.Question = true, nil
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: "example.com.", Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IPv4(192, 0, 2, 1)}}
	}))
	add(packed(f, long+"svc.cluster.local.", nil), []byte{})
	add(packed(f, "1.0.0.10.in-addr.arpa.", func(m *dns.Msg) { m.Question[0].Qtype = dns.TypePTR }), answer)
	add(packed(f, "f."+strings.Repeat("0.", 40)+"ip6.arpa.", func(m *dns.Msg) { m.Question[0].Qtype = dns.TypePTR }), answer)
	add(packed(f, "example.com.", func(m *dns.Msg) { m.SetEdns0(0, true).IsEdns0().SetVersion(7) }), answer)
	add(packed(f, "example.com.", func(m *dns.Msg) {
		for range 1000 { // amplification by questions
			m.Question = append(m.Question, m.Question[0])
		}
	}), answer)
	add([]byte{0, 1, 1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xc0, 12}, []byte{}) // a name that points at itself
	add(packed(f, "example.com.", func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }), answer)

	var mu sync.Mutex
	var says []byte
	repeat := false
	upstream, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = upstream.Close() })
	go func() {
		b := make([]byte, 65535)
		for {
			n, from, err := upstream.ReadFrom(b)
			if err != nil {
				return
			}
			mu.Lock()
			reply := append([]byte(nil), says...)
			repeats := repeat
			mu.Unlock()
			query, r := new(dns.Msg), new(dns.Msg)
			if query.Unpack(b[:n]) != nil {
				continue
			}
			if len(reply) >= 2 {
				copy(reply, b[:2]) // the number of the query, which an honest server would give
			}
			if repeats && r.Unpack(reply) == nil { // behind the check of the question
				r.Response, r.Question = true, query.Question
				if raw, err := r.Pack(); err == nil {
					reply = raw
				}
			}
			_, _ = upstream.WriteTo(reply, from)
			// An honest one follows: without a reply each query would wait for one.
			if raw, err := new(dns.Msg).SetReply(query).Pack(); err == nil {
				_, _ = upstream.WriteTo(raw, from)
			}
		}
	}()
	// Services are known, of each kind that has answers of its own.
	api := agenttest.NewAPI()
	api.Put(f, "services", service("default", "web", func(s *corev1.ServiceSpec) { s.ClusterIP, s.ClusterIPs = "10.96.0.9", []string{"10.96.0.9"} }))
	api.Put(f, "services", service("default", "db", func(s *corev1.ServiceSpec) { s.ClusterIP, s.ClusterIPs = "None", []string{"None"} }))
	api.Put(f, "services", service("default", "far", func(s *corev1.ServiceSpec) {
		s.Type, s.ExternalName, s.ClusterIP, s.ClusterIPs = corev1.ServiceTypeExternalName, "example.com", "", nil
	}))
	api.Put(f, "endpointslices", slice("default", "db-1", "db", discoveryv1.AddressTypeIPv4, endpoint("10.0.1.9", "db-0", true)))
	corrected := make(chan struct{})
	close(corrected)
	view, err := serviceview.New(api.Config(), corrected)
	if err != nil {
		f.Fatal(err)
	}
	go view.Follow(f.Context())
	if !cache.WaitForCacheSync(f.Context().Done(), view.HasSynced) {
		f.Fatal("the Services are not known")
	}
	for _, name := range []string{"db.default.svc.cluster.local.", "db-0.db.default.svc.cluster.local.", "far.default.svc.cluster.local.", "_http._tcp.web.default.svc.cluster.local.", "svc.cluster.local."} {
		for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeANY} {
			add(packed(f, name, func(m *dns.Msg) { m.Question[0].Qtype = kind }), answer)
		}
	}
	at := upstream.LocalAddr().(*net.UDPAddr).AddrPort()
	f.Fuzz(func(t *testing.T, query, reply []byte, repeats bool) {
		q := new(dns.Msg)
		if q.Unpack(query) != nil {
			return
		}
		mu.Lock()
		says, repeat = reply, repeats
		mu.Unlock()
		// A new one each time: a server that answered nonsense is left alone for a while.
		m := names.New(names.Config{
			Listen: netip.MustParseAddrPort("127.0.0.1:1"), Domain: "cluster.local", View: view,
			Upstream: func() []netip.AddrPort {
				if len(reply) < 12 {
					return nil
				}
				return []netip.AddrPort{at}
			},
		})
		for range 2 { // the second is answered from the cache
			r := m.Answer(t.Context(), q)
			if r.Id != q.Id || !r.Response {
				t.Errorf("no reply to the query: %v", r)
			}
			r.Truncate(dns.MinMsgSize)
			raw, err := r.Pack()
			if err == nil && len(raw) > dns.MaxMsgSize {
				t.Errorf("%d bytes", len(raw))
			}
		}
	})
}
