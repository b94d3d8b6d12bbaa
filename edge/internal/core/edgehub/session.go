package edgehub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
)

const (
	// missesAllowed is how many heartbeats in a row end the link if until the next one is due no
	// sign of the cloud has followed them. It ends silentIntervals after the heartbeat before
	// those, the last one that was followed by a sign.
	missesAllowed   = 2
	silentIntervals = missesAllowed + 1
	// ackError is by how much two readings of the time of one acknowledgement may differ: the
	// kernel has it to one of its ticks, of 10 ms at most.
	ackError = 20 * time.Millisecond
	// answerEvery is the interval of heartbeats that request an answer of cloudcore itself if the
	// transport reports that they arrive. On an idle link an answer, with its own acknowledgement,
	// costs as much as the heartbeat.
	answerEvery = 6
)

// session is one open link after its welcome.
type session struct {
	// Set before the session is current, never changed.
	config   Config
	metrics  *metrics
	current  *atomic.Pointer[session] // the session that modules send to: this one, while it runs
	conn     link.Conn
	epoch    uint64
	server   string
	instance string
	version  string
	streams  bool // the cloud takes streams
	rescue   bool // for an upgrade of this device alone
	// metricsTaken: the cloud takes samples of this device's metrics.
	metricsTaken bool

	history   string
	cloudTime time.Time
	skew      time.Duration
	since     time.Time

	heard      atomic.Bool  // a message was received since the last check
	carried    atomic.Bool  // the cloud sent a message for a module or a part; answers to heartbeats don't count
	delivering atomic.Bool  // the read loop waits for a module: silence is our own doing then
	lastHeard  atomic.Int64 // Unix nanoseconds
	renew      atomic.Bool  // a module asked for another session

	parts map[message.Kind]func(context.Context, message.Message) error // made by run, then only read

	mu      sync.Mutex
	over    bool
	pending map[message.ID]pending
}

// pending is a sent request without an answer yet.
type pending struct {
	request message.Message
	since   time.Time
}

func newSession(c Config, m *metrics, current *atomic.Pointer[session], conn link.Conn, epoch uint64, server string) *session {
	s := &session{config: c, metrics: m, current: current, conn: conn, epoch: epoch, server: server, since: time.Now(), pending: map[message.ID]pending{}}
	s.lastHeard.Store(s.since.UnixNano())
	s.heard.Store(true) // the welcome has just come
	return s
}

// run serves the session until its link ends, and gives the reason it did.
func (s *session) run(ctx context.Context, port Port) error {
	ctx, cancel := context.WithCancel(ctx)
	var beats sync.WaitGroup
	defer beats.Wait()
	defer cancel()
	beats.Go(func() { s.beat(ctx, port) })
	info := s.conn.Info()
	up := linkstate.Link{
		Epoch: s.epoch, Instance: s.instance, Version: s.version,
		Transport: string(info.Transport), Remote: s.server, Address: address(info.Remote), CloudTime: s.cloudTime, Since: s.since, Streams: s.streams, Metrics: s.metricsTaken, History: s.history, Rescue: s.rescue,
	}
	s.attach(ctx, up, &beats)
	if s.rescue {
		return s.runRescue(ctx, port)
	}
	// Current first, and Up before any message of the link: receivers can send at once, and know
	// the session of the first message.
	s.current.Store(s)
	s.tell(ctx, port, linkstate.Up.New(message.Resource{}, up))
	setState(ctx, port, linkstate.State{Up: true, Link: up})
	err := s.read(ctx, port)
	s.current.Store(nil)
	s.fail(ctx, port)
	// Reported even when edgecore stops, to modules that stop after this one.
	last, done := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer done()
	if ctx.Err() == nil {
		last = ctx
	}
	s.tell(last, port, linkstate.Down.New(message.Resource{}, linkstate.Loss{Epoch: s.epoch, Reason: err, At: time.Now()}))
	setState(last, port, linkstate.State{Link: up})
	return err
}

// runRescue serves a rescue session: for all modules there is no link.
func (s *session) runRescue(ctx context.Context, port Port) error {
	klog.FromContext(ctx).Info("This edgecore and cloudcore have no version of the protocol in common: the link is for an upgrade alone", "server", s.server, "cloudcore", s.version)
	s.config.Rescued(true)
	defer s.config.Rescued(false)
	end := time.AfterFunc(s.config.RescueFor, func() {
		_ = s.conn.Close(link.CloseShutdown, "the device looks for a cloudcore that speaks its protocol")
	})
	defer end.Stop()
	return s.read(ctx, port)
}

// address returns the address of a link's other end; the zero value if the transport doesn't know
// it.
func address(remote net.Addr) netip.Addr {
	if at, ok := remote.(interface{ AddrPort() netip.AddrPort }); ok { // *net.TCPAddr, *net.UDPAddr
		return at.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// attach gives the parts this session.
func (s *session) attach(ctx context.Context, up linkstate.Link, running *sync.WaitGroup) {
	s.parts = make(map[message.Kind]func(context.Context, message.Message) error, len(s.config.Parts))
	for kind, part := range s.config.Parts {
		if s.rescue && kind != topic.KindStream {
			continue
		}
		handle, run := part.Attach(up, func(ctx context.Context, m message.Message) error {
			m.Header.Time = time.Time{} // as in all sent messages, see send
			err := s.conn.Send(ctx, m)
			if err == nil {
				s.metrics.message("sent", m.Key())
			}
			return err
		})
		s.parts[kind] = handle
		running.Go(func() { run(ctx) })
	}
}

func (s *session) tell(ctx context.Context, port Port, m message.Message) {
	if err := port.SendToGroup(ctx, linkstate.Group, m); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Failed to report the link's state", "topic", m.Key())
	}
}

// read passes on received messages until the link ends, and closes it with ctx.
func (s *session) read(ctx context.Context, port Port) error {
	for {
		m, err := s.conn.Receive(ctx)
		if err != nil {
			if ctx.Err() != nil {
				_ = s.conn.Close(link.CloseShutdown, "edgecore stops")
			}
			return err
		}
		s.heard.Store(true)
		s.lastHeard.Store(time.Now().UnixNano())
		s.metrics.message("received", m.Key())
		if err := s.deliver(ctx, port, m); err != nil {
			end, ok := errors.AsType[*link.CloseError](err)
			switch {
			case ctx.Err() != nil:
				_ = s.conn.Close(link.CloseShutdown, "edgecore stops")
			case ok:
				_ = s.conn.Close(end.Code, end.Reason)
			default:
				// A message that can't be passed on is lost, and the cloud takes it for delivered
				// sooner or later: only a new session corrects that.
				_ = s.conn.Close(link.CloseInternal, "edgecore could not take a message")
			}
			return err
		}
	}
}

func (s *session) deliver(ctx context.Context, port Port, m message.Message) error {
	switch m.Key() {
	case topic.HeartbeatAnswer.Key():
		return nil
	case topic.Hello.Key(), topic.Welcome.Key(), topic.Heartbeat.Key():
		return &link.CloseError{Code: link.CloseProtocol, Reason: fmt.Sprintf("%s out of turn", m.Key())}
	}
	if handle, ok := s.parts[m.Route.Kind]; ok {
		s.carried.Store(true)
		return handle(ctx, m)
	}
	if s.rescue {
		return &link.CloseError{Code: link.CloseProtocol, Reason: fmt.Sprintf("%s in a rescue session", m.Key())}
	}
	s.carried.Store(true)
	s.delivering.Store(true)
	defer s.delivering.Store(false)
	m.Header.Session = s.epoch
	if p, ok := s.take(m.Header.ParentID); ok {
		if !p.request.Header.Awaited {
			return port.Send(ctx, p.request.Route.Source, m)
		}
		if err := port.Answer(m); err != nil {
			s.metrics.late.Inc()
			klog.FromContext(ctx).V(4).Info("Dropped a response: the request has ended", "topic", m.Key(), "err", err)
		}
		return nil
	}
	to, ok := s.config.Routes[m.Route.Kind]
	if !ok {
		to = s.config.Module
	}
	if err := port.Send(ctx, to, m); err != nil {
		return fmt.Errorf("handing %s to %s: %w", m.Key(), to, err)
	}
	return nil
}

// send takes a message of the bus up. An error reports that it did not go; a request for which it
// returns nil will be answered, with a refusal if the link ends.
func (s *session) send(ctx context.Context, m message.Message) error {
	if m.Header.Sync {
		if err := s.await(m); err != nil {
			return err
		}
	}
	up := m
	// The cloud has no use for these, and each byte of them counts. The content names its resource
	// too; only for two Latest messages the link must know whether both have the same resource.
	up.Route.Source, up.Header.Time = "", time.Time{}
	if up.Header.Delivery != message.Latest {
		up.Route.Resource = message.Resource{}
	}
	err := s.conn.Send(ctx, up)
	if err == nil {
		s.metrics.message("sent", m.Key())
		return nil
	}
	if m.Header.Sync {
		if _, ok := s.take(m.Header.ID); !ok {
			return nil // fail was here first and has answered it
		}
	}
	if _, ok := errors.AsType[*link.CloseError](err); ok {
		return fmt.Errorf("%w: %w", linkstate.ErrNoLink, err)
	}
	return err
}

// await records a request until its answer arrives.
func (s *session) await(m message.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over:
		return linkstate.ErrNoLink
	case len(s.pending) >= s.config.MaxPending:
		return ErrBusy
	}
	s.pending[m.Header.ID] = pending{request: m, since: time.Now()}
	return nil
}

func (s *session) take(id message.ID) (pending, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.pending[id]
	delete(s.pending, id)
	return p, ok
}

// fail refuses every request that waits for an answer, and those to come.
func (s *session) fail(ctx context.Context, port Port) {
	s.mu.Lock()
	s.over = true
	waiting := s.pending
	s.pending = nil
	s.mu.Unlock()
	for _, p := range waiting {
		refuse(ctx, port, p.request, linkstate.ErrNoLink)
	}
}

// sweep refuses the requests that have waited for too long: their callers have left, and the
// answers won't come.
func (s *session) sweep(ctx context.Context, port Port) {
	old := time.Now().Add(-s.config.PendingFor)
	var gone []message.Message
	s.mu.Lock()
	for id, p := range s.pending {
		if p.since.Before(old) {
			gone = append(gone, p.request)
			delete(s.pending, id)
		}
	}
	s.mu.Unlock()
	for _, request := range gone {
		refuse(ctx, port, request, fmt.Errorf("no answer from the cloud within %v", s.config.PendingFor))
	}
}

func (s *session) report() Report {
	if s.config.Report == nil {
		return Report{}
	}
	return s.config.Report()
}

// beat sends the heartbeats, and closes the link if the cloud does not answer.
func (s *session) beat(ctx context.Context, port Port) {
	tick := time.NewTicker(s.config.Keepalive)
	defer tick.Stop()
	changed := s.config.AliveChanged
	var look <-chan time.Time
	if changed == nil {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		look = ticker.C
	}
	var sequence uint64
	var sent bool // the last one reported a live kubelet
	acks := s.conn.Info().Acks
	shown := s.report().CertificateEnd // by the link itself
	var asked time.Time                // time of the oldest unanswered request, if no message was received since; else zero
	send := func(alive bool) {
		sequence++
		sent = alive
		content := &topicpb.Heartbeat{KubeletAlive: alive, Silent: acks && sequence%answerEvery != 1}
		if r := s.report(); r.Backlog > 0 || !r.CertificateEnd.Equal(shown) {
			content.Backlog, content.BacklogSeconds = uint32(max(0, r.Backlog)), uint32(max(0, r.BacklogAge.Seconds()))
			if !r.CertificateEnd.Equal(shown) {
				content.CertificateUnix = r.CertificateEnd.Unix()
			}
		}
		if !content.Silent {
			content.Sequence = sequence
			if asked.IsZero() {
				asked = time.Now()
			}
		}
		// A heartbeat is useless once the next is due.
		ctx, cancel := context.WithTimeout(ctx, s.config.Keepalive)
		defer cancel()
		beat := topic.Heartbeat.New(message.Resource{}, content)
		beat.Header.ID, beat.Header.Time = 0, time.Time{} // neither is used, and each byte of it counts
		if err := s.conn.Send(ctx, beat); err == nil {
			s.metrics.message("sent", beat.Key())
		}
	}
	// The acknowledgements received before the last heartbeat was sent. Only a later one shows that
	// the heartbeat arrived: other traffic may have been acknowledged just before, and each such
	// acknowledgement would delay the end of the link by as much, while cloudcore renews the Lease
	// by the heartbeats that arrive.
	before := s.lastAcked()
	send(s.config.Alive())
	misses := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.conn.Done():
			return
		case <-tick.C:
			misses++
			if s.heard.Swap(false) || s.delivering.Load() {
				misses, asked = 0, time.Time{}
			}
			if s.ackedSince(before) {
				misses = 0
			}
			if silence := silentIntervals * s.config.Keepalive; !asked.IsZero() && time.Since(asked) >= silence && misses < missesAllowed {
				// cloudcore is blocked, but its kernel is not.
				_ = s.conn.Close(link.CloseTimeout, fmt.Sprintf("cloudcore has not answered for %v", silence))
				return
			}
			if misses >= missesAllowed {
				_ = s.conn.Close(link.CloseTimeout, fmt.Sprintf("nothing came back for %v", silentIntervals*s.config.Keepalive))
				return
			}
			s.sweep(ctx, port)
			before = s.lastAcked()
			send(s.config.Alive())
		case <-look:
			if alive := s.config.Alive(); alive != sent {
				send(alive)
			}
		case <-changed:
			if alive := s.config.Alive(); alive != sent {
				send(alive)
			}
		case <-s.config.Wake:
			// The network changed. A link that is silent already is likely gone with the old one;
			// dialling again is quicker than waiting for the last miss.
			if misses >= missesAllowed-1 && !s.heard.Load() && !s.ackedSince(before) {
				_ = s.conn.Close(link.CloseTimeout, "the network changed and nothing comes back")
				return
			}
		}
	}
}

// ackedSince reports whether the transport received an acknowledgement after lastAcked returned
// before. It compares readings of one clock: QUIC's is the time of our check, up to an eighth of
// idleTimeout late, so it can't be compared with the time of a heartbeat.
func (s *session) ackedSince(before time.Time) bool { return s.lastAcked().Sub(before) > ackError }

// lastAcked returns when the transport last received an acknowledgement; zero if it doesn't know.
func (s *session) lastAcked() time.Time {
	meter, ok := s.conn.(link.Meter)
	if !ok || !s.conn.Info().Acks {
		return time.Time{}
	}
	return meter.Stats().LastHeard
}

func (s *session) lastContact() time.Time {
	heard := time.Unix(0, s.lastHeard.Load())
	if acked := s.lastAcked(); acked.After(heard) {
		return acked
	}
	return heard
}
