package cloudhub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/link"
)

// Run accepts links until ctx ends, then asks every edge to dial again elsewhere, waits for the
// parts, and closes the listeners. It returns an error when a listener failed for good or a part
// did not return in time.
func (h *Hub) Run(ctx context.Context) error {
	// Sessions outlive ctx by the drain: run ends them for good. New links are answered, with a
	// refusal, until all sessions have ended.
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	accept, failed := context.WithCancelCause(ctx)
	defer failed(nil)
	listen, stopListening := context.WithCancel(run)
	defer stopListening()

	var loops, links sync.WaitGroup
	for _, l := range h.listeners {
		loops.Go(func() {
			if err := h.accept(listen, run, accept, l, &links); err != nil {
				failed(fmt.Errorf("listener %s: %w", l.Addr(), err))
			}
		})
	}
	loops.Go(func() { h.watch(listen) })

	<-accept.Done()
	var errs []error
	if ctx.Err() == nil {
		errs = append(errs, context.Cause(accept))
	}
	left := h.drain(run)
	if left != nil {
		errs = append(errs, left)
	}
	stopListening()
	for _, l := range h.listeners {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, fmt.Errorf("closing listener %s: %w", l.Addr(), err))
		}
	}
	loops.Wait()
	stop()
	if left == nil { // otherwise it has named the stuck ones, and waiting for them could be for ever
		links.Wait()
	}
	return errors.Join(errs...)
}

// accept takes links from one listener until listen ends.
func (h *Hub) accept(listen, run, handshake context.Context, l link.Listener, links *sync.WaitGroup) error {
	logger := klog.FromContext(listen)
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		conn, err := l.Accept(listen)
		switch {
		case listen.Err() != nil:
			if err == nil {
				closeConn(conn, link.CloseShutdown, "cloudcore stops")
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil:
			// Too many open files, for example: others may be closed in a moment.
			logger.Error(err, "Failed to accept a link, retrying: check the limit of open files", "listener", l.Addr().String())
			pause.Reset(time.Second)
			select {
			case <-pause.C:
			case <-listen.Done():
				return nil
			}
			continue
		}
		select {
		case h.handshakes <- struct{}{}:
			links.Go(func() {
				h.serve(run, handshake, conn, links, sync.OnceFunc(func() { <-h.handshakes }))
			})
			continue
		default:
		}
		// No place. Closing may take a moment, and when even for that there are too many, no link
		// is accepted in the meantime.
		busy := &link.CloseError{Code: link.CloseOverloaded, Reason: fmt.Sprintf("%d links are shaking hands", cap(h.handshakes))}
		select {
		case h.refusals <- struct{}{}:
			links.Go(func() {
				defer func() { <-h.refusals }()
				h.refuse(logger, conn, busy)
			})
		default:
			h.refuse(logger, conn, busy)
		}
	}
}

// watch ends sessions that have been silent for too long, and those whose certificate has expired
// since its handshake. A half-open link is the transport's to notice; this is for an edge whose
// link lives and whose edgehub does not.
func (h *Hub) watch(ctx context.Context) {
	const every = 5 * time.Second
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		h.closeAll(h.table.attached(), 0, func(s *session) (link.CloseCode, string, bool) {
			if cert := s.conn.Info().Peer; now.After(cert.NotAfter) {
				return link.CloseShutdown, fmt.Sprintf("the certificate expired at %s: dial again with the renewed one",
					cert.NotAfter.UTC().Format(time.RFC3339)), true
			}
			silence := now.Sub(s.LastHeard())
			if bound := max(4*s.keepalive, 30*time.Second); silence > bound && !s.handling.Load() && !s.pace.resting.Load() {
				return link.CloseTimeout, fmt.Sprintf("no heartbeat for %v, the edge's interval is %v", silence.Round(time.Second), s.keepalive), true
			}
			return 0, "", false
		})
	}
}

// historySpread is the time over which sessions of an older history are ended: their devices dial
// again, and report their whole state.
const historySpread = 10 * time.Second

// EndHistories ends the sessions whose Welcome named another history of the cluster than id.
func (h *Hub) EndHistories(id string) {
	h.closeAll(h.table.attached(), historySpread, func(s *session) (link.CloseCode, string, bool) {
		named := s.history.Load()
		return link.CloseShutdown, "the cluster may have lost what was reported: dial again", named == nil || *named != id
	})
}

// closeAll closes the sessions for which how is true, over the time of spread, and returns when
// that is done.
func (h *Hub) closeAll(sessions []*session, spread time.Duration, how func(*session) (link.CloseCode, string, bool)) {
	if len(sessions) == 0 {
		return
	}
	var g errgroup.Group
	g.SetLimit(closers)
	gap := spread / time.Duration(len(sessions))
	for _, s := range sessions {
		code, reason, ok := how(s)
		if !ok {
			continue
		}
		g.Go(func() error {
			s.Close(code, reason)
			return nil
		})
		if gap > 0 {
			select {
			case <-s.conn.Done(): // it ended already: the next can go at once
			case <-time.After(gap):
			}
		}
	}
	_ = g.Wait() // its functions return no error
}

// drain ends every session and waits, for so long, until they have ended completely.
func (h *Hub) drain(ctx context.Context) error {
	sessions := h.table.drain()
	spread := min(h.config.DrainSpread, time.Duration(len(sessions))*time.Millisecond)
	h.closeAll(sessions, spread, func(*session) (link.CloseCode, string, bool) { return link.CloseShutdown, "cloudcore stops", true })
	ctx, cancel := context.WithTimeout(ctx, h.config.DrainWait)
	defer cancel()
	if left := h.table.empty(ctx); len(left) > 0 {
		names := make([]string, 0, len(left))
		for _, node := range left {
			names = append(names, string(node))
		}
		return fmt.Errorf("the sessions of %d nodes had not ended after %v: %s", len(left), h.config.DrainWait, strings.Join(names, ", "))
	}
	return nil
}
