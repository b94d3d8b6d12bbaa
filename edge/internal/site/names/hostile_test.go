package names_test

import (
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/skerry-io/skerry/common/rerun"
	"github.com/skerry-io/skerry/edge/internal/core/agent/agenttest"
	"github.com/skerry-io/skerry/edge/internal/site/names"
)

// answers serves DNS over UDP with reply's answer to each query.
func answers(t *testing.T, reply func(q *dns.Msg) []*dns.Msg) netip.AddrPort {
	t.Helper()
	up, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = up.Close() })
	go func() {
		b := make([]byte, 4096)
		for {
			n, from, err := up.ReadFrom(b)
			if err != nil {
				return
			}
			q := new(dns.Msg)
			if q.Unpack(b[:n]) != nil {
				continue
			}
			for _, r := range reply(q) {
				if raw, err := r.Pack(); err == nil {
					_, _ = up.WriteTo(raw, from)
				}
			}
		}
	}()
	return up.LocalAddr().(*net.UDPAddr).AddrPort()
}

// reply is an answer to a query, with one address.
func reply(q *dns.Msg, address string) *dns.Msg {
	r := new(dns.Msg).SetReply(q)
	r.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.ParseIP(address)}}
	return r
}

// An attacker on the path sends messages with the right ID that are no reply to the query: each is
// dropped, also from the cache, and the real reply counts.
func TestClaims_12_RepliesThatDoNotRepeatTheQuestionAreDropped(t *testing.T) {
	for name, change := range map[string]func(*dns.Msg){
		"no question":     func(m *dns.Msg) { m.Question = nil },
		"two questions":   func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) },
		"another name":    func(m *dns.Msg) { m.Question[0].Name = "other.example." },
		"another type":    func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeTXT },
		"another class":   func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS },
		"a query":         func(m *dns.Msg) { m.Response = false },
		"a truncated one": func(m *dns.Msg) { m.Question, m.Truncated = nil, true },
	} {
		t.Run(name, func(t *testing.T) {
			at := answers(t, func(q *dns.Msg) []*dns.Msg {
				forged := reply(q, "203.0.113.6")
				change(forged)
				return []*dns.Msg{forged, reply(q, "192.0.2.1")}
			})
			l := newSystem(t, agenttest.NewAPI(), func(c *names.Config) { c.Upstream = func() []netip.AddrPort { return []netip.AddrPort{at} } })
			for range 3 { // the second is answered from the cache
				q := new(dns.Msg)
				q.SetQuestion("shop.example.", dns.TypeA)
				r := l.exchange(q)
				if len(r.Answer) != 1 {
					t.Fatalf("%v", r)
				}
				if a, ok := r.Answer[0].(*dns.A); !ok || a.A.String() != "192.0.2.1" {
					t.Errorf("the forged answer counts: %v", r.Answer[0])
				}
			}
		})
	}
}

// The DNS library calls the handler in a goroutine of its own, which does not recover: a defect
// there costs its query, and neither the process nor the next query.
func TestClaims_12_PanicInTheHandlerCostsItsQuery(t *testing.T) {
	at := answers(t, func(q *dns.Msg) []*dns.Msg { return []*dns.Msg{reply(q, "192.0.2.1")} })
	var fail atomic.Bool
	fail.Store(true)
	l := newSystem(t, agenttest.NewAPI(), func(c *names.Config) {
		c.Upstream = func() []netip.AddrPort {
			if fail.Swap(false) {
				panic("a defect")
			}
			return []netip.AddrPort{at}
		}
	})
	q := new(dns.Msg)
	q.SetQuestion("shop.example.", dns.TypeA)
	for fail.Load() { // until the server listens, and one query has met the defect
		_, _, _ = (&dns.Client{Timeout: 100 * time.Millisecond}).Exchange(q, l.at.String())
	}
	if r := l.exchange(q); len(r.Answer) != 1 {
		t.Errorf("%v", r)
	}
}

// exchange asks, again while the server does not listen yet.
func (l *system) exchange(q *dns.Msg) *dns.Msg {
	l.t.Helper()
	for {
		r, _, err := new(dns.Client).Exchange(q, l.at.String())
		if err == nil {
			return r
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			l.t.Fatal(err)
		}
		if err := rerun.Pause(l.t.Context(), 10*time.Millisecond); err != nil {
			l.t.Fatal(err)
		}
	}
}
