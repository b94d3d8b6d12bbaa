package edgehub

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// Limits of concurrent attempts. One, as a rule. While no server answers, two more that are soon
// cancelled and restarted, because an attempt from before the network's return waits for TCP's own
// back-off (RFC 6298) while a new one sends at once; the first one continues, for a network that is
// so slow that the others never complete. And one more when the network changed.
const (
	triesEager = 3
	triesWoken = 4
)

type dialled struct {
	conn   link.Conn
	server string
	long   bool
	err    error
}

// connect dials until a transport is open, and returns an error only when ctx ends.
func (h *Hub) connect(ctx context.Context, p *pace) (link.Conn, string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer h.dials.Wait() // in this order: cancel first, so that no attempt is left
	defer cancel()
	results := make(chan dialled)
	under, long, woken := 0, 0, false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		server, at := p.pick()
		may := under == 0 || under < triesEager && p.eager(now) || under < triesWoken && woken
		if may && !at.After(now) {
			p.started(server, now)
			h.trying(server)
			d := dialled{server: server, long: long == 0}
			timeout := h.config.DialTimeout
			if !d.long {
				timeout = min(timeout, 3*h.config.BackoffMin/2)
			} else {
				long++
			}
			under++
			woken = false
			h.dials.Go(func() { h.dial(ctx, d, timeout, results) })
			continue
		}
		var wait <-chan time.Time
		if may {
			timer.Reset(at.Sub(now))
			wait = timer.C
			h.waiting(at)
		}
		select {
		case <-ctx.Done():
			return nil, "", context.Cause(ctx)
		case <-wait:
		case <-h.config.Wake:
			p.wake(time.Now())
			woken = true
		case d := <-results:
			under--
			if d.long {
				long--
			}
			if d.err == nil {
				return d.conn, d.server, nil
			}
			p.failed(d.server, time.Now(), d.err)
			h.troubled(ctx, p, d.server, d.err)
		}
	}
}

// dial makes one try and hands over its result, unless connect has returned.
func (h *Hub) dial(ctx context.Context, d dialled, timeout time.Duration, results chan<- dialled) {
	dial, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	d.conn, d.err = h.config.Dialer.Dial(dial, d.server)
	if d.err != nil && dial.Err() != nil && ctx.Err() == nil && !errors.Is(d.err, context.DeadlineExceeded) {
		d.err = fmt.Errorf("%w after %v: %w", context.DeadlineExceeded, timeout, d.err)
	}
	select {
	case results <- d:
	case <-ctx.Done():
		if d.err == nil {
			_ = d.conn.Close(link.CloseShutdown, "another try was quicker")
		}
	}
}

// open makes a session of a link: it sends the hello and waits for the welcome. On an error the
// link has been closed.
func (h *Hub) open(ctx context.Context, conn link.Conn, server string) (*session, error) {
	s, err := h.greet(ctx, conn, server)
	if err == nil {
		return s, nil
	}
	end, ok := errors.AsType[*link.CloseError](err)
	switch {
	case ctx.Err() != nil:
		_ = conn.Close(link.CloseShutdown, "edgecore stops")
	case ok:
		_ = conn.Close(end.Code, end.Reason)
	default:
		_ = conn.Close(link.CloseInternal, "edgecore could not say hello") // the local error is for our own log
	}
	return nil, err
}

// countOn processes the error of an attempt: if the cloud knows a higher epoch than this edge's,
// the store has been lost and the clock is behind, and the next session continues above that. After
// a restart the cloud reports it again.
func (h *Hub) countOn(err error) {
	end, ok := errors.AsType[*link.CloseError](err)
	if !ok || end.Code != link.CloseReplaced || !end.Remote {
		return
	}
	if epoch, ok := numberAfter(end.Reason, "epoch="); ok && epoch < math.MaxUint64 {
		h.floor = max(h.floor, epoch)
	}
}

func (h *Hub) greet(ctx context.Context, conn link.Conn, server string) (*session, error) {
	// Not before the transport is open: each number is a write to the flash, and an edge that is
	// offline for months dials often.
	epoch, err := h.config.Epochs.NextEpoch(ctx)
	if err != nil {
		return nil, fmt.Errorf("taking the next epoch: %w", err)
	}
	epoch = max(epoch, h.floor+1)
	h.floor = epoch
	parent := ctx
	ctx, cancel := context.WithTimeout(ctx, h.config.WelcomeTimeout)
	defer cancel()
	asked := time.Now()
	content := &topicpb.Hello{
		Protocol: h.config.Protocols.Max, ProtocolMin: h.config.Protocols.Min, Version: h.config.Version, BootId: h.config.BootID, Machine: h.config.Machine, Epoch: epoch,
		KeepaliveMillis: h.config.Keepalive.Milliseconds(),
	}
	if h.config.Rescued != nil {
		content.Features = []string{protocol.FeatureRescue}
	}
	if h.config.Trust != nil {
		content.Trust = h.config.Trust.TrustSum()
	}
	hello := topic.Hello.New(message.Resource{}, content)
	hello.Header.Time = time.Time{} // as in all sent messages, see session.send
	silent := func(err error) error {
		if ctx.Err() != nil && parent.Err() == nil {
			return &link.CloseError{Code: link.CloseTimeout, Reason: fmt.Sprintf("no welcome from %s within %v", server, h.config.WelcomeTimeout)}
		}
		return err
	}
	if err := conn.Send(ctx, hello); err != nil {
		return nil, fmt.Errorf("saying hello to %s: %w", server, silent(err))
	}
	m, err := conn.Receive(ctx)
	if err != nil {
		return nil, fmt.Errorf("waiting for the welcome of %s: %w", server, silent(err))
	}
	answered := time.Now()
	if m.Key() != topic.Welcome.Key() {
		return nil, &link.CloseError{Code: link.CloseProtocol,
			Reason: fmt.Sprintf("the first message of %s is %s, want %s", server, m.Key(), topic.Welcome.Key())}
	}
	welcome, err := topic.Welcome.Content(m)
	if err != nil {
		return nil, &link.CloseError{Code: link.CloseProtocol, Reason: err.Error()}
	}
	features, err := protocol.ParseFeatures(welcome.GetFeatures())
	if err != nil {
		return nil, &link.CloseError{Code: link.CloseProtocol, Reason: fmt.Sprintf("the welcome of %s: %v", server, err)}
	}
	rescue := welcome.GetProtocol() == protocol.Rescue && features.Has(protocol.FeatureRescue) && h.config.Rescued != nil
	if !rescue && !h.config.Protocols.Has(welcome.GetProtocol()) {
		return nil, &link.CloseError{Code: link.CloseVersion,
			Reason: fmt.Sprintf("edgecore %s speaks protocol %v, cloudcore %s at %s speaks %d",
				h.config.Version, h.config.Protocols, welcome.GetVersion(), server, welcome.GetProtocol())}
	}
	s := newSession(h.config, h.metrics, &h.current, conn, epoch, server)
	s.instance, s.version, s.streams, s.history = welcome.GetInstance(), welcome.GetVersion(), welcome.GetStreams() || features.Has(protocol.FeatureStreams), welcome.GetHistory()
	s.rescue = rescue
	s.metricsTaken = features.Has(protocol.FeatureMetrics)
	if millis := welcome.GetUnixMillis(); millis != 0 {
		s.cloudTime = time.UnixMilli(millis)
		// The cloud read its clock somewhere between the hello and its answer: half of that time is
		// the error, as in RFC 5905. By the monotonic clock, or a step of ours in between would be
		// taken for the cloud's.
		s.skew = s.cloudTime.Sub(asked.Round(0).Add(answered.Sub(asked) / 2))
	}
	if t := welcome.GetTrust(); t != nil && h.config.Trust != nil {
		// An error does not concern this link. A trust that can't be taken is sent again with the
		// next link.
		if err := h.config.Trust.Renew(conn.Info().Peer, t.GetCa(), t.GetClientCa()); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to adopt the certificate authorities sent by the cloud, which sends them again with the next link", "server", server)
		} else {
			klog.FromContext(ctx).Info("Renewed the trusted certificate authorities", "server", server)
		}
	}
	klog.FromContext(ctx).V(2).Info("Session opened",
		"server", reached(server, s.conn.Info().Remote), "transport", s.conn.Info().Transport, "epoch", epoch, "instance", s.instance, "version", s.version, "clockSkew", s.skew)
	return s, nil
}
