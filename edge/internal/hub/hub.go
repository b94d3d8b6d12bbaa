// Package hub is the edge's end of the link: it dials the cloud, keeps the link alive, and carries messages between the link and the bus.
//
// It owns when to dial whom, the session with the cloud, and the requests that wait for the cloud's answer. It keeps no message: what can't be sent
// is dropped and counted, because whoever sent it keeps what must not be lost. It does not know what the messages mean. The module is one goroutine
// that dials and reads, one that takes messages from the bus, one that sends heartbeats while a session is open; Status, Describe and Collect may be
// called by any.
package hub

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/edge/internal/linkstate"
)

// Name is the module's address on the bus.
const Name message.Name = "edgehub"

// ErrNoLink is the answer to a request while no session is open.
var ErrNoLink = linkstate.ErrNoLink

// ErrBusy is the answer to a request while too many wait for the cloud.
var ErrBusy = errors.New("too many requests wait for the cloud")

// Port is what a Hub needs of beehive.Port.
type Port interface {
	Send(ctx context.Context, to message.Name, m message.Message) error
	SendToGroup(ctx context.Context, to message.Group, m message.Message) error
	Receive(ctx context.Context) (message.Message, error)
	Reply(ctx context.Context, request message.Message, content any) error
	Answer(m message.Message) error
	Ready()
}

var (
	_ beehive.Module = (*Hub)(nil)
	_ beehive.Topics = (*Hub)(nil)
	_ Port           = (*beehive.Port)(nil)
)

// Hub is the module. It is a prometheus.Collector.
type Hub struct {
	// Set by New, never changed.
	config  Config
	random  func() float64
	metrics *metrics

	floor   uint64 // the highest epoch so far, that this process took or was told of; owned by the goroutine that dials
	dials   sync.WaitGroup
	current atomic.Pointer[session]

	mu     sync.Mutex
	status Status
	logged string // the trouble that was logged last
	when   time.Time
}

// New returns a hub. Run starts it.
func New(config Config) (*Hub, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	return &Hub{config: config.withDefaults(), random: rand.Float64, metrics: newMetrics()}, nil
}

// Name implements beehive.Module.
func (h *Hub) Name() message.Name { return Name }

// Topics implements beehive.Topics: whatever crosses the link, and the wish for a new session.
func (h *Hub) Topics() []message.Key {
	keys := []message.Key{linkstate.Renew.Key()}
	for _, e := range topic.NewTable().Entries() {
		keys = append(keys, e.Key)
	}
	return keys
}

// Run implements beehive.Module.
func (h *Hub) Run(ctx context.Context, port *beehive.Port) error { return h.Serve(ctx, port) }

// Serve is Run on any Port.
func (h *Hub) Serve(ctx context.Context, port Port) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var bus sync.WaitGroup
	defer bus.Wait()
	defer cancel(nil)
	port.Ready()
	h.setState(ctx, port, linkstate.State{}) // what an earlier run said last is true no longer
	bus.Go(func() {
		cancel(h.carry(ctx, port)) // of no effect where ctx ended first
	})
	h.link(ctx, port)
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// setState tells the agents whether there is a session. The bus keeps it for those that start later.
func (h *Hub) setState(ctx context.Context, port Port, state linkstate.State) {
	err := port.SendToGroup(ctx, linkstate.Agents, linkstate.Current.New(message.Resource{}, state))
	if err != nil && ctx.Err() == nil && !errors.Is(err, beehive.ErrNoGroup) {
		klog.FromContext(ctx).Error(err, "Sending the link's state to the agents failed")
	}
}

// link keeps a session open until ctx ends.
func (h *Hub) link(ctx context.Context, port Port) {
	p := newPace(h.config, h.random, time.Now())
	for {
		conn, server, err := h.connect(ctx, p)
		if err != nil {
			return // ctx ended
		}
		s, err := h.open(ctx, conn, server)
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close(link.CloseShutdown, "edgecore stops")
			}
			return
		}
		if err != nil {
			h.countOn(err)
			p.failed(server, time.Now(), err)
			h.troubled(ctx, p, server, err)
			continue
		}
		h.linked(s)
		err = s.run(ctx, port)
		now := time.Now()
		h.unlinked(s, err)
		if ctx.Err() != nil {
			return
		}
		if s.renew.Load() {
			p.renewed(now)
			continue
		}
		h.countOn(err)
		p.ended(server, now, now.Sub(s.since), err)
		h.troubled(ctx, p, server, err)
	}
}

// carry takes what modules send, and the open session takes it up. It never keeps a message. It ends with ctx, or when the bus fails,
// and says why.
func (h *Hub) carry(ctx context.Context, port Port) error {
	logger := klog.FromContext(ctx)
	for {
		m, err := port.Receive(ctx)
		if err != nil {
			return err
		}
		s := h.current.Load()
		if m.Key() == linkstate.Renew.Key() {
			if s != nil && m.Header.Time.After(s.since) { // an older wish is fulfilled already
				s.renew.Store(true)
				_ = s.conn.Close(link.CloseShutdown, fmt.Sprintf("%s starts afresh", m.Route.Source))
			}
			continue
		}
		switch {
		case s == nil:
			err = linkstate.ErrNoLink
		case m.Header.Session != 0 && m.Header.Session != s.epoch:
			err = errStale
		default:
			err = s.send(ctx, m)
		}
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return err
		case m.Header.Sync:
			h.refuse(ctx, port, m, err)
		default:
			h.metrics.dropped.WithLabelValues(m.Key().String()).Inc()
			if errors.Is(err, linkstate.ErrNoLink) || errors.Is(err, errStale) {
				logger.V(2).Info("Dropped a message for the cloud", "topic", m.Key(), "resource", m.Route.Resource, "source", m.Route.Source, "err", err)
			} else { // the message itself is at fault, and would be the next time
				logger.Error(err, "A message for the cloud can't be sent", "topic", m.Key(), "resource", m.Route.Resource, "source", m.Route.Source)
			}
		}
	}
}

var errStale = errors.New("it belongs to a session that has ended")

// refuse answers a request with an error.
func (h *Hub) refuse(ctx context.Context, port Port, request message.Message, refusal error) {
	if err := port.Reply(ctx, request, refusal); err != nil {
		klog.FromContext(ctx).V(4).Info("Nobody waits for a refusal any more", "topic", request.Key(), "err", err)
	}
}
