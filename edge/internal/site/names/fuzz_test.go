package names_test

import (
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
	"k8s.io/client-go/rest"

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
	f.Add(packed(f, "web.default.svc.cluster.local.", nil), answer)
	f.Add(packed(f, "example.com.", nil), packed(f, "example.com.", func(m *dns.Msg) { // repeats no question
		m.Response, m.Question = true, nil
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: "example.com.", Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IPv4(192, 0, 2, 1)}}
	}))
	f.Add(packed(f, long+"svc.cluster.local.", nil), []byte{})
	f.Add(packed(f, "1.0.0.10.in-addr.arpa.", func(m *dns.Msg) { m.Question[0].Qtype = dns.TypePTR }), answer)
	f.Add(packed(f, "f."+strings.Repeat("0.", 40)+"ip6.arpa.", func(m *dns.Msg) { m.Question[0].Qtype = dns.TypePTR }), answer)
	f.Add(packed(f, "example.com.", func(m *dns.Msg) { m.SetEdns0(0, true).IsEdns0().SetVersion(7) }), answer)
	f.Add(packed(f, "example.com.", func(m *dns.Msg) {
		for range 1000 { // amplification by questions
			m.Question = append(m.Question, m.Question[0])
		}
	}), answer)
	f.Add([]byte{0, 1, 1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xc0, 12}, []byte{}) // a name that points at itself
	f.Add(packed(f, "example.com.", func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }), answer)

	var mu sync.Mutex
	var says []byte
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
			mu.Unlock()
			if len(reply) >= 2 && n >= 2 {
				copy(reply, b[:2]) // the number of the query, which an honest server would give
			}
			_, _ = upstream.WriteTo(reply, from)
		}
	}()
	view, err := serviceview.New(&rest.Config{Host: "http://edge.invalid"}, nil)
	if err != nil {
		f.Fatal(err)
	}
	at := upstream.LocalAddr().(*net.UDPAddr).AddrPort()
	f.Fuzz(func(t *testing.T, query, reply []byte) {
		q := new(dns.Msg)
		if q.Unpack(query) != nil {
			return
		}
		mu.Lock()
		says = reply
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
