package names

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// maxQueries is how many queries are with upstreams at once; beyond, SERVFAIL.
	maxQueries = 1000
	// maxCached is how many answers are kept; beyond, the least recently used one is dropped.
	maxCached = 1000
	// maxTTL bounds the TTL of an upstream's answers.
	maxTTL = time.Hour
	// staleFor is how long an answer is used after its time if no upstream answers, and staleTTL
	// its TTL then (RFC 8767, 5).
	staleFor = 24 * time.Hour
	staleTTL = 30
	// patience is the timeout of an upstream: less than RFC 8767's 1.8 s, after which clients give
	// up.
	patience = 1500 * time.Millisecond
	// deadFor is how long an upstream that did not answer is left alone.
	deadFor = 5 * time.Second
)

// forwarder asks other name servers, and remembers.
type forwarder struct {
	zones    []Zone
	upstream func() []netip.AddrPort
	self     netip.AddrPort
	slots    chan struct{}

	mu    sync.Mutex // guards the fields below
	dead  map[netip.AddrPort]time.Time
	cache map[dns.Question]*kept
	clock uint64
}

// kept is an answer with its time.
type kept struct {
	msg     *dns.Msg
	at      time.Time
	expires time.Time
	used    uint64
}

func newForwarder(c Config) *forwarder {
	return &forwarder{
		zones: c.Zones, upstream: c.Upstream, self: c.Listen, slots: make(chan struct{}, maxQueries), dead: map[netip.AddrPort]time.Time{},
		cache: map[dns.Question]*kept{},
	}
}

// serversFor are the name servers of a name: those of the longest zone that it is in, else
// the upstream.
func (f *forwarder) serversFor(name string) []netip.AddrPort {
	best, servers := -1, []netip.AddrPort(nil)
	for _, z := range f.zones {
		zone := canonical(z.Zone)
		if (name == zone || strings.HasSuffix(name, "."+zone)) && len(zone) > best {
			best, servers = len(zone), z.Upstream
		}
	}
	if best >= 0 {
		return servers
	}
	return f.upstream()
}

// ask returns the upstreams' answer to a name, nil without one. The message is the caller's.
func (f *forwarder) ask(ctx context.Context, q dns.Question) *dns.Msg {
	asked := q.Name
	q.Name = canonical(q.Name)
	now := time.Now()
	f.mu.Lock()
	have := f.cache[q]
	if have != nil {
		f.clock++
		have.used = f.clock
	}
	f.mu.Unlock()
	if have != nil && now.Before(have.expires) {
		return have.answer(q.Name, asked, now)
	}
	if found := f.askUpstream(ctx, q); found != nil {
		f.keep(q, found)
		return renamed(found.Copy(), q.Name, asked)
	}
	if have != nil && now.Before(have.expires.Add(staleFor)) {
		return have.stale(q.Name, asked)
	}
	return nil
}

func (f *forwarder) askUpstream(ctx context.Context, q dns.Question) *dns.Msg {
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	default:
		return nil
	}
	for _, server := range f.serversFor(q.Name) {
		if server == f.self || !f.mayAsk(server) {
			continue
		}
		m := new(dns.Msg)
		m.SetQuestion(q.Name, q.Qtype)
		m.SetEdns0(payload, false)
		r, err := exchange(ctx, m, server)
		f.noteAnswer(ctx, server, err)
		if err == nil && (r.Rcode == dns.RcodeSuccess || r.Rcode == dns.RcodeNameError) {
			return r
		}
	}
	return nil
}

// exchange asks one server over UDP, and over TCP where the answer does not fit.
func exchange(ctx context.Context, m *dns.Msg, server netip.AddrPort) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := exchangeOver(ctx, "udp", m, server)
	if err == nil && r.Truncated {
		r, err = exchangeOver(ctx, "tcp", m, server)
	}
	return r, err
}

// exchangeOver takes the first message that is a reply to this query. Others are dropped (RFC 5452,
// 9.1): a number of 16 bits alone is guessed, and no part of this package may count on a message
// having the fields of a query. The deadline bounds them.
func exchangeOver(ctx context.Context, network string, m *dns.Msg, server netip.AddrPort) (*dns.Msg, error) {
	conn, err := (&dns.Client{Net: network, UDPSize: payload, Timeout: patience}).DialContext(ctx, server.String())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	conn.UDPSize = payload
	if until, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(until); err != nil {
			return nil, err
		}
	}
	if err := conn.WriteMsg(m); err != nil {
		return nil, err
	}
	for {
		r, err := conn.ReadMsg()
		switch {
		case r == nil || network == "tcp" && err != nil: // no message was read, or the start of the next is unknown
			return nil, err
		case err == nil && replies(r, m):
			return r, nil
		}
	}
}

// replies reports whether a message is a reply to the query: its number and its one question.
func replies(r, m *dns.Msg) bool {
	if !r.Response || r.Id != m.Id || len(r.Question) != 1 {
		return false
	}
	is, was := r.Question[0], m.Question[0]
	return strings.EqualFold(is.Name, was.Name) && is.Qtype == was.Qtype && is.Qclass == was.Qclass
}

// mayAsk reports whether a server may be asked now. One that did not answer is asked by one query
// each deadFor: the others don't wait for it.
func (f *forwarder) mayAsk(server netip.AddrPort) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	until, dead := f.dead[server]
	if dead && time.Now().Before(until) {
		return false
	}
	if dead {
		f.dead[server] = time.Now().Add(deadFor)
	}
	return true
}

func (f *forwarder) noteAnswer(ctx context.Context, server netip.AddrPort, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		delete(f.dead, server)
	case ctx.Err() == nil:
		if len(f.dead) > 64 { // of name servers that the host had once
			clear(f.dead)
		}
		f.dead[server] = time.Now().Add(deadFor)
	}
}

func (f *forwarder) keep(q dns.Question, m *dns.Msg) {
	now := time.Now()
	life := lifeOf(m)
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, had := f.cache[q]; !had && len(f.cache) >= maxCached {
		var oldest dns.Question
		least := ^uint64(0)
		for k, e := range f.cache {
			if e.used < least {
				least, oldest = e.used, k
			}
		}
		delete(f.cache, oldest)
	}
	f.clock++
	f.cache[q] = &kept{msg: m.Copy(), at: now, expires: now.Add(life), used: f.clock}
}

// lifeOf is how long an answer holds: the least of its TTLs; of a negative one that of its SOA
// (RFC 2308, 5); zero without one.
func lifeOf(m *dns.Msg) time.Duration {
	least := maxTTL
	for _, rr := range m.Answer {
		least = min(least, time.Duration(rr.Header().Ttl)*time.Second)
	}
	if len(m.Answer) > 0 {
		return least
	}
	for _, rr := range m.Ns {
		if soa, ok := rr.(*dns.SOA); ok {
			return min(least, time.Duration(min(soa.Minttl, soa.Hdr.Ttl))*time.Second)
		}
	}
	return 0
}

// answer is the cached answer with the rest of its TTLs.
func (k *kept) answer(name, asked string, now time.Time) *dns.Msg {
	m := k.msg.Copy()
	age := uint32(now.Sub(k.at) / time.Second)
	setTTL(m, func(t uint32) uint32 { return t - min(age, t) })
	return renamed(m, name, asked)
}

// stale is the kept answer after its time.
func (k *kept) stale(name, asked string) *dns.Msg {
	m := k.msg.Copy()
	setTTL(m, func(uint32) uint32 { return staleTTL })
	return renamed(m, name, asked)
}

func setTTL(m *dns.Msg, next func(uint32) uint32) {
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			if h := rr.Header(); h.Rrtype != dns.TypeOPT {
				h.Ttl = next(h.Ttl)
			}
		}
	}
}

// renamed sets the records' name to that of the query: some clients compare its case (dns0x20).
func renamed(m *dns.Msg, from, to string) *dns.Msg {
	for _, rr := range m.Answer {
		if h := rr.Header(); strings.EqualFold(h.Name, from) {
			h.Name = to
		}
	}
	return m
}
