// Package names answers DNS queries of this device's pods: the names of Services and pods as
// Kubernetes' DNS specification 1.1.0 has them, from the device's cache, and all other names by way
// of other name servers.
//
// It owns the sockets, the answers and the cache of upstreams' answers. It refuses to claim that a
// name does not exist before it knows all names (then SERVFAIL, which resolvers retry), and asks no
// upstream that has just failed to answer. Every query is a goroutine of the DNS library; their
// shared state has locks of its own.
package names

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/recovery"
	"github.com/skerry-io/skerry/common/rerun"
	"github.com/skerry-io/skerry/edge/internal/core/connshare"
)

// Name is the module's address on the bus.
const Name message.Name = "names"

// Module answers.
type Module struct {
	config  Config
	records *records
	others  *forwarder
	waiting chan struct{} // a place for each query of an address that is not known yet
}

// New makes the module.
func New(c Config) *Module {
	return &Module{config: c, records: newRecords(c), others: newForwarder(c), waiting: make(chan struct{}, maxWaiting)}
}

// Name implements beehive.Module.
func (*Module) Name() message.Name { return Name }

// Run implements beehive.Module.
func (m *Module) Run(ctx context.Context, port *beehive.Port) error {
	s, err := m.listen(ctx)
	if err != nil {
		return err
	}
	port.Ready()
	return m.serve(ctx, s)
}

// Serve answers until ctx ends.
func (m *Module) Serve(ctx context.Context) error {
	s, err := m.listen(ctx)
	if err != nil {
		return err
	}
	return m.serve(ctx, s)
}

func (m *Module) listen(ctx context.Context) (sockets, error) {
	if m.config.Address != nil {
		if err := m.config.Address(); err != nil {
			return sockets{}, fmt.Errorf("giving this device the address %s: %w", m.config.Listen.Addr(), err)
		}
	}
	return open(ctx, m.config.Listen, m.config.Sockets)
}

func (m *Module) serve(ctx context.Context, s sockets) error {
	g, ctx := errgroup.WithContext(ctx)
	asking := context.WithoutCancel(ctx)
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		recovery.Call(asking, string(Name), func() { // without an answer the client asks again
			if m.admits(asking, w.RemoteAddr()) {
				m.answer(asking, w, q)
			}
		})
	})
	if s.inherited {
		m.waitSynced(ctx)
	}
	for _, server := range []*dns.Server{
		{PacketConn: s.udp, Handler: handler, UDPSize: payload},
		{Listener: netutil.LimitListener(connshare.Listen(s.tcp, m.shares(asking)), maxTCP), Handler: handler},
	} {
		g.Go(func() error {
			if err := server.ActivateAndServe(); err != nil && ctx.Err() == nil {
				return fmt.Errorf("answering queries: %w", err)
			}
			return nil
		})
		g.Go(func() error {
			<-ctx.Done()
			// Read queries are answered first, without waiting for clients with an open connection.
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishFor)
			defer cancel()
			_ = server.ShutdownContext(ending)
			if server.PacketConn != nil {
				return closed(server.PacketConn.Close())
			}
			return closed(server.Listener.Close())
		})
	}
	if m.config.Address != nil {
		g.Go(func() error { return m.keepAddress(ctx) })
	}
	klog.FromContext(ctx).Info("DNS server is listening", "listen", m.config.Listen, "domain", m.config.Domain)
	return g.Wait()
}

// waitSynced leaves queries in the sockets that outlive the process until all names are known, for
// as long as a resolver may wait: it need not ask again.
func (m *Module) waitSynced(ctx context.Context) {
	for end := time.Now().Add(syncWait); !m.config.View.HasSynced() && time.Now().Before(end); {
		if rerun.Pause(ctx, syncPoll) != nil {
			return
		}
	}
}

// shares bound the connections of an address. A host of the LAN reaches the listener like a pod,
// and is judged by its first query: those of unknown addresses take few of the places.
func (m *Module) shares(ctx context.Context) connshare.By {
	known, unknown := connshare.New(maxTCP, maxClientTCP), connshare.New(maxUnknownTCP, maxUnknownClientTCP)
	return func(a netip.Addr) (*connshare.Shares, string) {
		if m.config.Admits != nil && !m.config.Admits(ctx, a) {
			return unknown.Each(a)
		}
		return known.Each(a)
	}
}

// admits reports whether a query of an address is answered.
func (m *Module) admits(ctx context.Context, from net.Addr) bool {
	at, err := netip.ParseAddrPort(from.String())
	if m.config.Admits == nil || err == nil && m.config.Admits(ctx, at.Addr().Unmap()) {
		return true
	}
	if err != nil {
		return false
	}
	select {
	case m.waiting <- struct{}{}:
		defer func() { <-m.waiting }()
	default:
		return false
	}
	for end := time.Now().Add(admitWait); time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(admitPoll):
		}
		if m.config.Admits(ctx, at.Addr().Unmap()) {
			return true
		}
	}
	return false
}

func closed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// keepAddress gives the device the address again that another process removed.
func (m *Module) keepAddress(ctx context.Context) error {
	t := time.NewTicker(addressEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if err := m.config.Address(); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to set up the DNS server's address, retrying", "address", m.config.Listen.Addr())
		}
	}
}

func (m *Module) answer(ctx context.Context, w dns.ResponseWriter, q *dns.Msg) {
	r := m.Answer(ctx, q)
	size := dns.MaxMsgSize
	if w.RemoteAddr().Network() == "udp" {
		size = dns.MinMsgSize
		if o := q.IsEdns0(); o != nil {
			size = min(max(int(o.UDPSize()), dns.MinMsgSize), payload)
		}
	}
	r.Truncate(size)
	_ = w.WriteMsg(r) // the client asks again
}

// Answer makes the answer to a query.
func (m *Module) Answer(ctx context.Context, q *dns.Msg) *dns.Msg {
	r := new(dns.Msg)
	r.SetReply(q)
	r.RecursionAvailable, r.Compress = true, true
	if o := q.IsEdns0(); o != nil {
		if o.Version() != 0 {
			r.Rcode = dns.RcodeBadVers // RFC 6891, 6.1.3
			r.SetEdns0(payload, false)
			return r
		}
		r.SetEdns0(payload, false)
	}
	if q.Opcode != dns.OpcodeQuery {
		r.Rcode = dns.RcodeNotImplemented
		return r
	}
	if len(q.Question) != 1 || q.Question[0].Qclass != dns.ClassINET {
		r.Rcode = dns.RcodeRefused
		return r
	}
	m.resolve(ctx, q.Question[0], r)
	return r
}

// maxChain bounds how many names of ExternalNames are followed.
const maxChain = 8

func (m *Module) resolve(ctx context.Context, q dns.Question, r *dns.Msg) {
	name := q.Name
	for range maxChain {
		a := m.records.find(name, q.Qtype)
		switch {
		case a.foreign:
			m.forward(ctx, dns.Question{Name: name, Qtype: q.Qtype, Qclass: q.Qclass}, r)
			return
		case a.alias == "":
			r.Answer, r.Extra = append(r.Answer, a.records...), append(r.Extra, a.extra...)
			r.Rcode, r.Authoritative = a.code, a.code != dns.RcodeServerFailure
			if len(a.records) == 0 && a.code != dns.RcodeServerFailure {
				r.Ns = append(r.Ns, m.records.authority())
			}
			return
		}
		r.Answer = append(r.Answer, a.records...)
		if q.Qtype == dns.TypeCNAME {
			r.Authoritative = true
			return
		}
		name = a.alias
	}
	r.Rcode = dns.RcodeServerFailure
}

// forward adds the upstreams' answers.
func (m *Module) forward(ctx context.Context, q dns.Question, r *dns.Msg) {
	found := m.others.ask(ctx, q)
	if found == nil {
		r.Rcode = dns.RcodeServerFailure
		return
	}
	r.Rcode = found.Rcode
	r.Answer = append(r.Answer, found.Answer...)
	r.Ns = append(r.Ns, found.Ns...)
	for _, x := range found.Extra {
		if x.Header().Rrtype != dns.TypeOPT {
			r.Extra = append(r.Extra, x)
		}
	}
}
