package cloudhub

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/common/rerun"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// serve makes a session of an accepted link and starts it with links, or refuses it. handshaken is
// called when the link has become a session, or was refused.
func (h *Hub) serve(run, accept context.Context, conn link.Conn, links *sync.WaitGroup, handshaken func()) {
	info := conn.Info()
	logger := klog.FromContext(run).WithValues("remote", address(info.Remote), "transport", info.Transport)
	s, err := h.handshake(accept, conn)
	if err == nil {
		err = h.sameMachine(s)
	}
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
	parts := h.parts
	if s.rescue {
		parts = h.config.Rescue
		logger.Info("Opened a rescue session: this edgecore and cloudcore have no version of the protocol in common", "version", s.version)
	} else {
		logger.V(2).Info("Session opened", "version", s.version, "bootID", s.bootID)
	}
	links.Add(1)
	s.open(klog.NewContext(run, logger), parts, func() {
		h.table.leave(s)
		links.Done()
	})
}

// handshake turns a link into a session that is not in the table yet. A *link.CloseError is the
// reason for a refused link.
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
	// Before its openings are counted: who has a revoked certificate uses up none of the device's
	// that took its place.
	if err := h.admit(ctx, node, cert); err != nil {
		return nil, err
	}
	if ok, _ := h.openings.Take(node); !ok {
		// One that heeds no retry-after would have the next handshake of TLS at once.
		_ = rerun.Pause(ctx, refusedFor)
		return nil, &link.CloseError{Code: link.CloseOverloaded, Reason: "too many links of this node, one after the other"}
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
	stated := protocol.Stated(hello.GetProtocol(), hello.GetProtocolMin())
	features, err := protocol.ParseFeatures(hello.GetFeatures())
	if err != nil {
		return nil, &link.CloseError{Code: link.CloseProtocol, Reason: "the hello: " + err.Error()}
	}
	spoken, ok := h.config.Protocols.Common(stated)
	rescue := !ok && features.Has(protocol.FeatureRescue) && len(h.config.Rescue) > 0
	if !ok && !rescue {
		return nil, &link.CloseError{Code: link.CloseVersion,
			Reason: fmt.Sprintf("cloudcore %s speaks protocol %v, edgecore %s speaks %v", h.config.Version, h.config.Protocols, hello.GetVersion(), stated)}
	}
	if hello.GetEpoch() == 0 {
		return nil, &link.CloseError{Code: link.CloseProtocol, Reason: "the hello has no epoch"}
	}
	var trust *topicpb.Trust
	if sum := hello.GetTrust(); len(sum) > 0 && h.config.Trust != nil {
		trust = h.config.Trust(sum)
	}
	now := time.Now()
	s := &session{
		metrics: h.metrics, conn: conn, node: node,
		features: features, rescue: rescue,
		epoch: hello.GetEpoch(), version: hello.GetVersion(), bootID: hello.GetBootId(), machine: hello.GetMachine(),
		keepalive: keepalive(hello.GetKeepaliveMillis()),
		began:     now,
		pace:      pace{node: node, charges: h.charges, began: now},
		ended:     make(chan struct{}),
	}
	if rescue {
		s.welcome = func(string) message.Message {
			return m.Answer(&topicpb.Welcome{
				Protocol: protocol.Rescue, Version: h.config.Version, Instance: h.config.Instance, UnixMillis: time.Now().UnixMilli(), Trust: trust,
				Streams: true, Features: []string{protocol.FeatureRescue},
			})
		}
		return s, nil
	}
	s.welcome = func(history string) message.Message {
		return m.Answer(&topicpb.Welcome{
			Protocol: spoken, Version: h.config.Version, Instance: h.config.Instance, UnixMillis: time.Now().UnixMilli(), Trust: trust,
			Streams: h.config.Streams, Features: h.features(), History: history,
		})
	}
	return s, nil
}

// sameMachine refuses a session from another machine than the node's open one.
func (h *Hub) sameMachine(s *session) error {
	open, ok := h.table.get(s.node)
	if !ok || h.config.SameMachine == nil {
		return nil
	}
	if err := h.config.SameMachine(open, s); err != nil {
		return &link.CloseError{Code: link.CloseForbidden, Reason: err.Error()}
	}
	return nil
}

// features lists the features of which edges may send messages.
func (h *Hub) features() (list []string) {
	if h.config.Streams {
		list = append(list, protocol.FeatureStreams)
	}
	if h.config.Metrics {
		list = append(list, protocol.FeatureMetrics)
	}
	return list
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

// keepalive reads an edge's keepalive: within bounds, so that a wrong number keeps no dead session
// and ends no live one.
func keepalive(millis int64) time.Duration {
	const usual, least, most = 10 * time.Second, time.Second, 10 * time.Minute
	return min(max(time.Duration(cmp.Or(min(millis, most.Milliseconds()), usual.Milliseconds()))*time.Millisecond, least), most)
}

// replace ends the node's older sessions and attaches s when they have ended completely.
func (h *Hub) replace(ctx context.Context, s *session, older []*session) error {
	// Once more, now that Kick finds this session: a ban that came after the first question was
	// either seen by this one, or by the Kick after it.
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
	// The older sessions have ended. The history is read only now that EndHistories finds this
	// session: a later change ends it.
	history := ""
	if h.config.History != nil {
		history = h.config.History(ctx)
	}
	s.history.Store(&history)
	welcome := s.welcome(history)
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
		logger.Info("Refused a link", "code", end.Code, "reason", reason)
		return
	}
	logger.V(2).Info("Refused a link", "code", end.Code, "reason", reason)
}

// retryAfter is a time in seconds, spread so that devices refused together don't come back
// together.
func (h *Hub) retryAfter() int {
	d := h.config.RetryAfter + rand.N(h.config.RetryAfter)
	return max(1, int(d.Round(time.Second).Seconds()))
}
