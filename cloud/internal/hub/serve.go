package hub

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// session is the Session of one link.
type session struct {
	welcome *message.Message // until it is sent

	// Set before the session enters the table, never changed.
	hub       *Hub
	conn      link.Conn
	node      types.NodeName
	epoch     uint64
	version   string
	bootID    string
	keepalive time.Duration

	ended   chan struct{} // closed by the table when the attached session has left it
	counted bool          // owned by metrics.mu

	// Set by open, then only read.
	ctx      context.Context // ends with the link, or with the hub
	cancel   context.CancelFunc
	mux      *message.Mux
	services []Service
	reading  *Loop

	lastHeard atomic.Int64 // Unix nanoseconds
	alive     atomic.Bool  // what the last heartbeat said of the kubelet
	handling  atomic.Bool  // a handler runs: silence is our own doing then
}

var _ Session = (*session)(nil)

func (s *session) Node() types.NodeName  { return s.node }
func (s *session) Epoch() uint64         { return s.epoch }
func (s *session) Info() link.Info       { return s.conn.Info() }
func (s *session) Done() <-chan struct{} { return s.conn.Done() }

// Keepalive is within the bounds of the function keepalive, whatever the edge said.
func (s *session) Keepalive() time.Duration { return s.keepalive }

// LastHeard is when the last message came.
func (s *session) LastHeard() time.Time { return time.Unix(0, s.lastHeard.Load()) }

func (s *session) Send(ctx context.Context, m message.Message) error {
	if err := s.conn.Send(ctx, m); err != nil {
		return err
	}
	s.hub.metrics.message("sent", m.Key())
	return nil
}

func (s *session) Close(code link.CloseCode, reason string) { closeConn(s.conn, code, reason) }

// closeConn ends a link. The reason is cut to what fits into a websocket's close frame: RFC 6455, 5.5, leaves 123 bytes.
func closeConn(conn link.Conn, code link.CloseCode, reason string) {
	const most = 123
	if len(reason) > most {
		reason = reason[:most]
	}
	_ = conn.Close(code, reason) // the link ends in any case, and conn.Err tells how
}

// handshake turns a link into a session that the table does not know yet. An error that is a *link.CloseError says how to refuse the link.
func (h *Hub) handshake(ctx context.Context, conn link.Conn) (*session, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, h.config.HelloTimeout,
		&link.CloseError{Code: link.CloseTimeout, Reason: fmt.Sprintf("no hello within %v", h.config.HelloTimeout)})
	defer cancel()

	cert := conn.Info().Peer
	if cert == nil {
		return nil, &link.CloseError{Code: link.CloseForbidden, Reason: "no client certificate"}
	}
	node, err := pki.NodeOf(cert)
	if err != nil {
		return nil, &link.CloseError{Code: link.CloseForbidden, Reason: err.Error()}
	}
	leave, ok := h.shares.Enter(node)
	if !ok {
		return nil, &link.CloseError{Code: link.CloseOverloaded, Reason: "too many links of this node have said nothing yet"}
	}
	defer leave()
	if err := h.admit(ctx, node, cert); err != nil {
		return nil, err
	}
	m, err := conn.Receive(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, err
	}
	h.metrics.message("received", m.Key())
	if m.Key() != topic.Hello.Key() {
		return nil, &link.CloseError{Code: link.CloseProtocol, Reason: fmt.Sprintf("the first message is %s, want %s", m.Key(), topic.Hello.Key())}
	}
	hello, err := topic.Hello.Content(m)
	if err != nil {
		return nil, &link.CloseError{Code: link.CloseProtocol, Reason: err.Error()}
	}
	if hello.GetProtocol() != topic.Protocol {
		return nil, &link.CloseError{Code: link.CloseVersion,
			Reason: fmt.Sprintf("cloudcore %s speaks protocol %d, edgecore %s speaks %d",
				h.config.Version, topic.Protocol, hello.GetVersion(), hello.GetProtocol())}
	}
	if hello.GetEpoch() == 0 {
		return nil, &link.CloseError{Code: link.CloseProtocol, Reason: "the hello has no epoch"}
	}
	var trust *topicpb.Trust
	if sum := hello.GetTrust(); len(sum) > 0 && h.config.Trust != nil {
		trust = h.config.Trust(sum)
	}
	s := &session{
		hub: h, conn: conn, node: node,
		epoch: hello.GetEpoch(), version: hello.GetVersion(), bootID: hello.GetBootId(),
		keepalive: keepalive(hello.GetKeepaliveMillis()),
		ended:     make(chan struct{}),
		welcome: new(m.Answer(&topicpb.Welcome{
			Protocol: topic.Protocol, Version: h.config.Version, Instance: h.config.Instance, UnixMillis: time.Now().UnixMilli(), Trust: trust,
		})),
	}
	s.lastHeard.Store(time.Now().UnixNano())
	return s, nil
}

// admit asks the Admission. Its refusals are *link.CloseErrors.
func (h *Hub) admit(ctx context.Context, node types.NodeName, cert *x509.Certificate) error {
	if h.config.Admission == nil {
		return nil
	}
	err := guard(ctx, func() error { return h.config.Admission.Admit(ctx, node, cert) })
	if _, ok := errors.AsType[*link.CloseError](err); ok || err == nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, errPanic) {
		return &link.CloseError{Code: link.CloseInternal, Reason: err.Error()}
	}
	return &link.CloseError{Code: link.CloseForbidden, Reason: err.Error()}
}

// keepalive reads what an edge says of itself: within bounds, so that a wrong number keeps no dead session and ends no live one.
func keepalive(millis int64) time.Duration {
	const usual, least, most = 10 * time.Second, time.Second, 10 * time.Minute
	return min(max(time.Duration(cmp.Or(min(millis, most.Milliseconds()), usual.Milliseconds()))*time.Millisecond, least), most)
}

// serve makes a session of an accepted link and starts it with links, or refuses it. handshaken is called when the link is a session, or is none.
func (h *Hub) serve(run, accept context.Context, conn link.Conn, links *sync.WaitGroup, handshaken func()) {
	info := conn.Info()
	logger := klog.FromContext(run).WithValues("remote", address(info.Remote), "transport", info.Transport)
	s, err := h.handshake(accept, conn)
	if err == nil {
		logger = logger.WithValues("node", s.node, "epoch", s.epoch)
		var older []*session
		if older, err = h.table.enter(s); err == nil {
			handshaken() // while it waits for its predecessor it holds a place in the table, and no longer one among the strangers
			if err = h.replace(accept, s, older); err != nil {
				defer h.table.leave(s)
			}
		}
	}
	handshaken()
	if err != nil {
		if accept.Err() != nil {
			err = &link.CloseError{Code: link.CloseShutdown, Reason: "cloudcore stops"}
		}
		h.refuse(logger, conn, err)
		return
	}
	h.metrics.connects.WithLabelValues(string(info.Transport)).Inc()
	logger.V(2).Info("Session opened", "version", s.version, "bootID", s.bootID)
	links.Add(1)
	s.open(klog.NewContext(run, logger), links.Done)
}

// replace ends the node's older sessions and attaches s when nothing of them is left.
func (h *Hub) replace(ctx context.Context, s *session, older []*session) error {
	// Once more, now that Kick finds this session: a ban that came after the first question was either seen by this one, or by the Kick after it.
	if err := h.admit(ctx, s.node, s.conn.Info().Peer); err != nil {
		return err
	}
	if len(older) > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, h.config.ReplaceWait,
			&link.CloseError{Code: link.CloseOverloaded, Reason: "the earlier session of this node has not ended yet"})
		defer cancel()
	}
	for _, o := range older {
		o.Close(link.CloseReplaced, fmt.Sprintf("a newer session of this node took over: epoch %d from %s", s.epoch, address(s.conn.Info().Remote)))
	}
	if err := h.table.attach(ctx, s); err != nil {
		return err
	}
	// Nothing of the older session runs any more.
	welcome := *s.welcome
	s.welcome = nil
	return s.Send(ctx, welcome)
}

// refuse closes a link that is no session, with the code that err carries.
func (h *Hub) refuse(logger klog.Logger, conn link.Conn, err error) {
	end := closeError(err)
	reason := end.Reason
	if end.Code == link.CloseOverloaded {
		reason = fmt.Sprintf("retry-after=%d: %s", h.retryAfter(), reason)
	}
	closeConn(conn, end.Code, reason)
	h.metrics.refuse(conn.Info().Transport, end.Code)
	if !end.Code.Reconnect() {
		logger.Info("Link refused", "code", end.Code, "reason", reason)
		return
	}
	logger.V(2).Info("Link refused", "code", end.Code, "reason", reason)
}

// open attaches the parts and serves the link until it ends; ended is called when nothing of the session is left. It does not block: a session that waits has no
// goroutine here.
func (s *session) open(ctx context.Context, ended func()) {
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.mux, s.reading = message.NewMux(), NewLoop(s.read)
	var begin []Service
	err := guard(ctx, func() error {
		for _, part := range s.hub.parts {
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
	// What the hub does for a session that it ends, its link does too: both ways lead to end.
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

// end waits until nothing of the session runs any more, and takes it out of the table.
func (s *session) end() {
	s.cancel() // a handler that waits for something must learn of the end too
	s.reading.Stop()
	for _, service := range s.services {
		service.Stop()
	}
	<-s.conn.Done() // the link is ending
	end := closeError(s.conn.Err())
	s.hub.metrics.close(s, end)
	klog.FromContext(s.ctx).V(2).Info("Session ended",
		"code", end.Code, "reason", end.Reason, "remoteClose", end.Remote, "lasted", time.Since(s.conn.Info().Since))
	s.hub.table.leave(s)
}

// read dispatches what has come, in order.
func (s *session) read(ctx context.Context) error {
	for ctx.Err() == nil {
		m, ok := s.conn.Poll()
		if !ok {
			return nil // Notify tells of the next, and of the end
		}
		s.lastHeard.Store(time.Now().UnixNano())
		s.hub.metrics.message("received", m.Key())
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
		// Before the parts: what they do with it is no part of the answer.
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

// fail ends the session for err, and doesn't wait for that: whoever calls may be what the end waits for. When the link has ended already, or the session is being
// ended, it does nothing.
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

// errPanic is what a panic in a part becomes. Its text goes over the link and says nothing of our inside; the log has the rest.
var errPanic = errors.New("internal error in cloudcore")

// guard turns a panic of a part into an error: one session's bad luck is not the others'.
func guard(ctx context.Context, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			klog.FromContext(ctx).Error(errPanic, "A part panicked", "panic", p, "stack", string(debug.Stack()))
			err = errPanic
		}
	}()
	return f()
}

// closeError finds how a link ended.
func closeError(err error) *link.CloseError {
	if end, ok := errors.AsType[*link.CloseError](err); ok {
		return end
	}
	return &link.CloseError{Code: link.CloseInternal, Reason: fmt.Sprint(err), Err: err}
}

func address(a net.Addr) string {
	if a == nil {
		return ""
	}
	return a.String()
}
