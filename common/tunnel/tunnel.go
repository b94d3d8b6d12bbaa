// Package tunnel carries connections within a link: streams, each a net.Conn, side by side and
// with everything else that the link carries.
//
// It owns the streams of one session: their windows, deadlines and ends. It refuses a peer that
// opens more than was agreed, or sends more than it was allowed. It is independent of the
// transport: a Sender is all it needs, and the receiver of messages calls the handlers. No handler
// ever waits: a reader that stalls costs its own window alone. A Mux and its Streams may be used by
// many goroutines at once; the handlers are called by one.
package tunnel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/recovery"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

const (
	// A stream's window begins with minWindow, which is all that a thin link can bear without
	// making others wait, and grows with the rate at which it is read. maxWindow carries 20
	// Mbit/s over 100 ms.
	maxWindow = 256 << 10
	minWindow = 16 << 10
	// chunk is the data of one message: with its envelope it fits into one frame of the link.
	chunk = 15 << 10
	// closeTimeout bounds how long the end of a stream waits for a link whose queue is full.
	closeTimeout = 10 * time.Second
)

// Sender is the way to the peer: a link.Conn, or a session with one. Send holds its caller back
// while the queue of the class is full, and an error means that the message did not go. It keeps
// no part of the content once it has returned.
type Sender interface {
	Send(ctx context.Context, m message.Message) error
}

// Config configures a Mux. Every zero bound means its default.
type Config struct {
	// Peer names the other end in errors.
	Peer string
	// Accept dials the target of the peer's stream. Its error is sent to the peer. nil: this end
	// accepts no stream.
	Accept func(ctx context.Context, target string) (net.Conn, error)
	// Edge is set at the edge's end of the link: each end opens streams with ids of its own.
	Edge bool
	// MaxStreams bounds the streams of the session: 640. At the bound an open is refused.
	MaxStreams int
	// MaxAccepted bounds those that the peer has opened: MaxStreams. At the bound the next is
	// refused; a peer that opens twice as many loses the link.
	MaxAccepted int
	// Memory bounds the sum of the streams' windows, roughly: 8 MiB. The more streams there
	// are, the smaller the window of the next.
	Memory int
	// AcceptTimeout bounds Accept: 10 s.
	AcceptTimeout time.Duration
}

// ErrBusy is returned by Open when there are too many streams.
var ErrBusy = errors.New("too many streams")

// Refused is a peer's reason for refusing a stream, or for ending one.
type Refused struct{ Peer, Reason string }

func (r *Refused) Error() string { return r.Peer + ": " + r.Reason }

// Mux is the streams of one session.
type Mux struct {
	// Set by New, never changed.
	config Config
	send   Sender
	asking chan struct{} // one slot, held while an open is handed to the link: ids go up in the order in which the peer gets them

	mu      sync.Mutex
	ended   error // set once: why no stream works any more
	streams map[uint64]*Stream
	last    uint64              // the last id of Open
	heard   uint64              // the last id that the peer opened
	foreign int                 // how many of streams the peer opened
	early   map[uint64]struct{} // above heard: ended before they were opened, as the two are not in order
	windows map[*Stream]struct{}
	closes  []*Stream

	accepts sync.WaitGroup
	ctx     context.Context // of accepted streams; ends with the Mux
	cancel  context.CancelFunc

	tellers sync.WaitGroup // Add only with telling held and before over is set
	telling sync.Mutex
	tell    [2]teller // of windows, and of closes
	begun   bool      // by Start
	over    bool      // by Stop
}

// teller is one kind of notification to the peer. No caller waits for it: a goroutine sends it, and
// ends when there is no more.
type teller struct{ due, running bool }

const (
	windows = iota
	closes
)

// New makes the streams of a session. Run serves them.
func New(send Sender, config Config) *Mux {
	config.Peer = cmp.Or(config.Peer, "the peer")
	config.MaxStreams = cmp.Or(config.MaxStreams, 640)
	config.MaxAccepted = cmp.Or(config.MaxAccepted, config.MaxStreams)
	config.Memory = cmp.Or(config.Memory, 8<<20)
	config.AcceptTimeout = cmp.Or(config.AcceptTimeout, 10*time.Second)
	m := &Mux{config: config, send: send, streams: map[uint64]*Stream{}, windows: map[*Stream]struct{}{}}
	m.asking, m.early = make(chan struct{}, 1), map[uint64]struct{}{}
	if config.Edge {
		m.last = edgeIDs
	} else {
		m.heard = edgeIDs
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m
}

// edgeIDs is below every id of a stream that an edge opens, and above those of the cloud's.
const edgeIDs = 1 << 40

// peers reports whether an id is of the streams that the peer opens.
func (m *Mux) peers(id uint64) bool { return (id > edgeIDs) != m.config.Edge }

// Run serves the streams until ctx ends: it is Start and Stop for a caller with a goroutine to
// spare.
func (m *Mux) Run(ctx context.Context) error {
	m.Start()
	<-ctx.Done()
	m.Stop()
	return nil
}

// Start notifies the peer of windows and ends from now on. It is called once. While there is
// no notification there is no goroutine: a cloud has a Mux for every link.
func (m *Mux) Start() {
	m.telling.Lock()
	defer m.telling.Unlock()
	m.begun = true
	m.begin(windows)
	m.begin(closes)
}

// Stop ends all streams and returns when their goroutines have ended.
func (m *Mux) Stop() {
	m.telling.Lock()
	m.over = true
	m.telling.Unlock()
	m.fail(fmt.Errorf("the link to %s ended", m.config.Peer))
	m.tellers.Wait()
	m.accepts.Wait()
}

// poke starts sending a kind of notification to the peer.
func (m *Mux) poke(what int) {
	m.telling.Lock()
	defer m.telling.Unlock()
	m.tell[what].due = true
	m.begin(what)
}

// begin starts the goroutine where one is needed. m.telling is held.
func (m *Mux) begin(what int) {
	if t := &m.tell[what]; t.due && !t.running && m.begun && !m.over {
		t.running = true
		m.tellers.Go(func() {
			for m.next(what) {
				if what == windows {
					m.tellWindows(m.ctx)
				} else {
					m.tellCloses(m.ctx)
				}
			}
		})
	}
}

func (m *Mux) next(what int) bool {
	m.telling.Lock()
	defer m.telling.Unlock()
	t := &m.tell[what]
	t.running, t.due = t.due && !m.over, false
	return t.running
}

// fail ends every stream, and those to come.
func (m *Mux) fail(why error) {
	m.cancel()
	m.mu.Lock()
	if m.ended != nil {
		m.mu.Unlock()
		return
	}
	m.ended = why
	streams := m.streams
	m.streams, m.foreign, m.closes = map[uint64]*Stream{}, 0, nil
	clear(m.windows)
	m.mu.Unlock()
	for _, s := range streams {
		s.end(why)
	}
}

// Len is how many streams there are.
func (m *Mux) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.streams)
}

// add makes a stream. m.mu is held.
func (m *Mux) add(id uint64, credit int) *Stream {
	most := min(max(m.config.Memory/(len(m.streams)+1), minWindow), maxWindow)
	s := &Stream{mux: m, id: id, window: minWindow, most: most, room: minWindow, credit: credit, asked: time.Now()}
	m.streams[id] = s
	if m.peers(id) {
		m.foreign++
	}
	return s
}

// Open asks the peer for a connection to target, and waits for its answer.
func (m *Mux) Open(ctx context.Context, target string) (*Stream, error) {
	s, err := m.ask(ctx, target)
	if err != nil {
		return nil, err
	}
	if err := s.awaitAccept(ctx); err != nil {
		s.abort(err.Error())
		return nil, err
	}
	return s, nil
}

// probeTarget leads nowhere: it is refused at once.
const probeTarget = "probe"

// Probe asks the peer for a sign of life, which nil is.
func (m *Mux) Probe(ctx context.Context) error {
	s, err := m.Open(ctx, probeTarget)
	if _, ok := errors.AsType[*Refused](err); ok {
		return nil
	}
	if err == nil {
		s.abort("it was a probe")
	}
	return err
}

// ask makes a stream and requests it from the peer.
func (m *Mux) ask(ctx context.Context, target string) (*Stream, error) {
	select {
	case m.asking <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("the link to %s is blocked: %w", m.config.Peer, context.Cause(ctx))
	}
	defer func() { <-m.asking }()
	m.mu.Lock()
	if m.ended != nil {
		defer m.mu.Unlock()
		return nil, m.ended
	}
	if len(m.streams) >= m.config.MaxStreams {
		m.mu.Unlock()
		return nil, fmt.Errorf("%w to %s: %d are open", ErrBusy, m.config.Peer, m.config.MaxStreams)
	}
	m.last++
	s := m.add(m.last, 0)
	m.mu.Unlock()
	open := &topicpb.StreamOpen{Id: s.id, Window: minWindow, Target: target}
	if err := m.send.Send(ctx, topic.StreamOpen.New(message.Resource{}, open)); err != nil {
		m.forget(s)
		s.end(err)
		return nil, fmt.Errorf("asking %s for a stream: %w", m.config.Peer, err)
	}
	return s, nil
}

// forget takes a stream off the books.
func (m *Mux) forget(s *Stream) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.windows, s)
	if m.streams[s.id] == s {
		delete(m.streams, s.id)
		if m.peers(s.id) {
			m.foreign--
		}
	}
}

func (m *Mux) find(id uint64) *Stream {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.streams[id]
}

// Handle handles a message of kind stream. Its error is a *link.CloseError: the peer broke the
// protocol.
func (m *Mux) Handle(_ context.Context, msg message.Message) error {
	switch c := msg.Content.(type) {
	case *topicpb.StreamOpen:
		return m.opened(c)
	case *topicpb.StreamWindow:
		if s := m.find(c.GetId()); s != nil {
			return s.allowed(int64(c.GetBytes()))
		}
	case *topicpb.StreamData:
		if s := m.find(c.GetId()); s != nil {
			return s.received(c.GetData(), c.GetFin())
		}
	case *topicpb.StreamClose:
		if s := m.find(c.GetId()); s != nil {
			m.forget(s)
			s.closed(c.GetReason())
			return nil
		}
		return m.closedEarly(c.GetId())
	default:
		return protocolError("%s is no message of a stream", msg.Key())
	}
	return nil // in flight when the stream ended
}

func protocolError(format string, args ...any) error {
	return &link.CloseError{Code: link.CloseProtocol, Reason: fmt.Sprintf(format, args...)}
}

// opened is called when the peer asks for a stream.
func (m *Mux) opened(o *topicpb.StreamOpen) error {
	id := o.GetId()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended != nil {
		return nil
	}
	if m.config.Accept == nil {
		return protocolError("streams are not opened from that side")
	}
	if !m.peers(id) {
		return protocolError("stream %d is not of those that side opens", id)
	}
	if id <= m.heard {
		return protocolError("stream %d was opened before", id)
	}
	m.heard = id
	if _, ok := m.early[id]; ok {
		delete(m.early, id)
		return nil
	}
	if m.foreign >= 2*m.config.MaxAccepted { // it keeps to no bound of its own
		return protocolError("more than %d streams", m.config.MaxAccepted)
	}
	busy := m.foreign >= m.config.MaxAccepted
	s := m.add(id, int(o.GetWindow()))
	s.accepted = true
	if o.GetTarget() == probeTarget {
		m.refuse(s, "alive")
		return nil
	}
	if busy {
		m.refuse(s, fmt.Sprintf("%d streams are open already", m.config.MaxAccepted))
		return nil
	}
	m.accepts.Go(func() { recovery.Call(context.Background(), "tunnel", func() { m.serve(s, o.GetTarget()) }) })
	return nil
}

// closedEarly notes the end of an unknown stream. Those that have ended already are ignored.
func (m *Mux) closedEarly(id uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.peers(id) || id <= m.heard || m.config.Accept == nil {
		return nil
	}
	if len(m.early) >= m.config.MaxAccepted {
		return protocolError("%d streams end before they begin", len(m.early))
	}
	m.early[id] = struct{}{}
	return nil
}

// refuse ends a stream that was not handed to any caller here. m.mu is held.
func (m *Mux) refuse(s *Stream, reason string) {
	s.mu.Lock()
	s.finish(net.ErrClosed, reason)
	s.mu.Unlock()
	m.closes = append(m.closes, s)
	m.poke(closes)
}

// serve connects a stream to its target.
func (m *Mux) serve(s *Stream, target string) {
	dial, cancel := context.WithTimeout(m.ctx, m.config.AcceptTimeout)
	conn, err := m.config.Accept(dial, target)
	cancel()
	if err != nil {
		s.abort(err.Error())
		return
	}
	s.mu.Lock()
	s.asked = time.Now()
	s.mu.Unlock()
	s.grant(minWindow)
	Splice(m.ctx, s, conn)
}

// tellWindows sends the windows of streams.
func (m *Mux) tellWindows(ctx context.Context) {
	m.mu.Lock()
	due := make([]*Stream, 0, len(m.windows))
	for s := range m.windows {
		due = append(due, s)
	}
	clear(m.windows)
	m.mu.Unlock()
	for _, s := range due {
		n := s.takeGrant()
		if n == 0 {
			continue
		}
		w := &topicpb.StreamWindow{Id: s.id, Bytes: uint32(n)}
		if err := m.send.Send(ctx, topic.StreamWindow.New(message.Resource{}, w)); err != nil {
			s.abort(fmt.Sprintf("sending on the link: %v", err)) // it could wait for ever otherwise
		}
	}
}

// tellCloses sends the ends of streams, each behind the stream's data.
func (m *Mux) tellCloses(ctx context.Context) {
	m.mu.Lock()
	due := m.closes
	m.closes = nil
	m.mu.Unlock()
	for _, s := range due {
		s.mu.Lock()
		reason := s.reason
		s.mu.Unlock()
		c := topic.StreamClose.New(message.Resource{}, &topicpb.StreamClose{Id: s.id, Reason: reason})
		for ctx.Err() == nil {
			wait, cancel := context.WithTimeout(ctx, closeTimeout)
			err := m.send.Send(wait, c)
			expired := wait.Err() != nil
			cancel()
			if err == nil || !expired {
				break // any other error is the link's end, or will be
			}
		}
		m.forget(s)
	}
}
