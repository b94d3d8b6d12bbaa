package cloudhub

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/common/topic"
)

// session is the Session of one link.
type session struct {
	welcome func(history string) message.Message // nil once it is sent

	// Set before the session enters the table, never changed.
	metrics   *metrics
	conn      link.Conn
	node      types.NodeName
	epoch     uint64
	features  protocol.Features
	rescue    bool // without a common version: for upgrades alone
	version   string
	bootID    string
	machine   string
	keepalive time.Duration
	began     time.Time
	pace      pace

	ended   chan struct{} // closed by the table when the attached session has left it
	counted bool          // owned by metrics.mu

	// Set by open, then only read.
	ctx      context.Context // ends with the link, or with the hub
	cancel   context.CancelFunc
	mux      *message.Mux
	services []Service
	reading  *Loop

	history  atomic.Pointer[string] // as named in the Welcome; nil before it
	heard    atomic.Int64           // when the last message came, in nanoseconds after began
	alive    atomic.Bool            // the kubelet's state in the last heartbeat
	handling atomic.Bool            // a handler runs: silence is our own doing then
}

var _ Session = (*session)(nil)

func (s *session) Node() types.NodeName { return s.node }

func (s *session) Epoch() uint64 { return s.epoch }

func (s *session) Info() link.Info { return s.conn.Info() }

func (s *session) Version() string { return s.version }

func (s *session) Machine() string { return s.machine }

func (s *session) Done() <-chan struct{} { return s.conn.Done() }

// Keepalive is within the bounds of the function keepalive, whatever the edge sent.
func (s *session) Keepalive() time.Duration { return s.keepalive }

func (s *session) Supports(feature string) bool { return s.features.Has(feature) }

// LastHeard is when the last message came. A change of the clock makes no difference to its
// distance from other times of this process.
func (s *session) LastHeard() time.Time { return s.began.Add(time.Duration(s.heard.Load())) }

// Traffic returns the counts of messages, and the bytes on the wire where the transport counts
// them.
func (s *session) Traffic() (stats link.Stats, wire link.Wire) {
	if m, ok := s.conn.(link.Meter); ok {
		stats = m.Stats()
	}
	if w, ok := s.conn.(link.Wired); ok {
		wire, _ = w.Wire()
	}
	return stats, wire
}

func (s *session) hear() { s.heard.Store(int64(time.Since(s.began))) }

func (s *session) Send(ctx context.Context, m message.Message) error {
	m.Header.Time = time.Time{} // the edge has no use for it, and each byte of it counts
	if err := s.conn.Send(ctx, m); err != nil {
		return err
	}
	s.metrics.message("sent", m.Key())
	return nil
}

func (s *session) Charge(d time.Duration) { s.pace.charge(d) }

func (s *session) Close(code link.CloseCode, reason string) { closeConn(s.conn, code, reason) }

// open attaches the parts and serves the link until it ends; ended is called when the session has
// ended completely. It does not block: a session that waits has no goroutine here.
func (s *session) open(ctx context.Context, parts []Part, ended func()) {
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.mux, s.reading = message.NewMux(), NewLoop(s.read)
	s.pace.charge(opening)
	var begin []Service
	err := guard(ctx, func() error {
		for _, part := range parts {
			if service := part.Attach(s, s.mux); service != nil {
				begin = append(begin, service)
			}
		}
		return nil
	})
	for _, service := range begin {
		if err == nil {
			err = guard(ctx, func() error { service.Start(s.ctx, s.fail); return nil })
			s.services = append(s.services, service) // even one that panicked may have begun something
		}
	}
	// The hub ends a session by ending its link: both ways lead to end.
	release := context.AfterFunc(ctx, func() { s.Close(link.CloseShutdown, "cloudcore stops") }) // of no effect where the link ended first
	s.reading.Start(s.ctx, s.fail)
	s.conn.Notify(s.reading.Signal, func() {
		release()
		s.end()
		ended()
	})
	if err != nil {
		s.fail(err)
	}
}

// end waits until all goroutines of the session have ended.
func (s *session) end() {
	s.cancel() // a handler that waits for something must learn of the end too
	s.reading.Stop()
	s.pace.stop()
	for _, service := range s.services {
		service.Stop()
	}
	<-s.conn.Done() // the link is ending
	end := closeError(s.conn.Err())
	s.metrics.close(s.conn, &s.counted, end)
	klog.FromContext(s.ctx).V(2).Info("Session ended",
		"code", end.Code, "reason", end.Reason, "remoteClose", end.Remote, "lasted", time.Since(s.conn.Info().Since))
}

// resume reads on after a pause, in which the silence was our own doing.
func (s *session) resume() {
	s.hear()
	s.reading.Signal()
}

// read dispatches the received messages, in order.
func (s *session) read(ctx context.Context) error {
	for ctx.Err() == nil {
		if paused, began := s.pace.paused(s.resume); paused {
			if began {
				s.metrics.pauses.Inc()
			}
			return nil
		}
		m, ok := s.conn.Poll()
		if !ok {
			return nil // Notify signals the next, and the end
		}
		s.hear()
		s.metrics.message("received", m.Key())
		s.pace.charge(perMessage)
		s.handling.Store(true)
		err := s.handle(ctx, s.mux, m)
		s.handling.Store(false)
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *session) handle(ctx context.Context, mux *message.Mux, m message.Message) error {
	heartbeat := m.Key() == topic.Heartbeat.Key()
	if heartbeat {
		beat, err := topic.Heartbeat.Content(m)
		if err != nil {
			return err
		}
		s.alive.Store(beat.GetKubeletAlive())
		// Before the parts: the answer does not depend on them.
		if !beat.GetSilent() {
			if err := s.Send(ctx, m.Answer(beat)); err != nil {
				return err
			}
		}
	}
	err := guard(ctx, func() error { return mux.Dispatch(ctx, m) })
	if heartbeat && errors.Is(err, message.ErrNoHandler) {
		return nil // no part need care
	}
	return err
}

// fail ends the session for err, and doesn't wait for that: the end may have to wait for the
// caller. It has no effect when the link has ended already, or the session is being ended.
func (s *session) fail(err error) {
	select {
	case <-s.conn.Done():
		return
	default:
	}
	code, reason := link.CloseInternal, err.Error()
	if end, ok := errors.AsType[*link.CloseError](err); ok {
		code, reason = end.Code, end.Reason
	} else if s.ctx.Err() != nil {
		code, reason = link.CloseShutdown, "cloudcore stops"
	} else if errors.Is(err, message.ErrNoHandler) || errors.Is(err, message.ErrWrongContent) {
		code = link.CloseProtocol
	}
	if code == link.CloseInternal || code == link.CloseProtocol {
		klog.FromContext(s.ctx).Info("Ending the session", "code", code, "reason", reason)
	}
	go s.Close(code, reason) // ends with the link
}
