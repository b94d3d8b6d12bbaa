package edgehub

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
)

// Run implements beehive.Module.
func (h *Hub) Run(ctx context.Context, port *beehive.Port) error { return h.Serve(ctx, port) }

// Serve is Run on any Port.
func (h *Hub) Serve(ctx context.Context, port Port) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var bus sync.WaitGroup
	defer bus.Wait()
	defer cancel(nil)
	port.Ready()
	setState(ctx, port, linkstate.State{}) // the last state of an earlier run is outdated
	bus.Go(func() {
		cancel(h.carry(ctx, port)) // of no effect where ctx ended first
	})
	h.link(ctx, port)
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
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
		p.ended(server, now, now.Sub(s.since), s.carried.Load(), err)
		h.troubled(ctx, p, server, err)
	}
}

// carry receives the modules' messages and passes them to the open session. It never keeps a
// message. It ends with ctx, or when the bus fails, and returns the reason.
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
				_ = s.conn.Close(link.CloseShutdown, fmt.Sprintf("%s starts again", m.Route.Source))
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
			refuse(ctx, port, m, err)
		default:
			h.metrics.dropped.WithLabelValues(m.Key().String()).Inc()
			if errors.Is(err, linkstate.ErrNoLink) || errors.Is(err, errStale) {
				logger.V(2).Info("Dropped a message for the cloud", "topic", m.Key(), "resource", m.Route.Resource, "source", m.Route.Source, "err", err)
			} else { // the message itself is at fault, and would be the next time
				logger.Error(err, "Failed to send a message to the cloud, dropping it", "topic", m.Key(), "resource", m.Route.Resource, "source", m.Route.Source)
			}
		}
	}
}

var errStale = errors.New("it belongs to a session that has ended")
