package reports

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/skerry-io/skerry/cloud/internal/core/fence"
)

const (
	// maxConfirmed bounds the objects whose last write is remembered, and the sessions of each:
	// beyond, the Lease is read once more than needed.
	maxConfirmed        = 256
	maxConfirmedBy      = 64
	confirmationsAtOnce = 16
)

// confirmations remembers which sessions were the newest of their nodes when an object got the
// version that this replica wrote last: on top of that version they write without reading their
// Leases. Another writer, and a session that is new to the object, cost one read of a Lease each.
type confirmations struct {
	client fence.Client
	reads  prometheus.Counter

	mu    sync.Mutex
	of    map[target]*confirmed
	order []target
}

type confirmed struct {
	version  string
	sessions map[fence.Session]struct{}
}

func newConfirmations(client fence.Client) *confirmations {
	return &confirmations{client: client, of: map[target]*confirmed{}, reads: prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "skerry", Subsystem: "aggregate", Name: "fence_reads_total", Help: "Leases read before a report was written.",
	})}
}

// check returns, by node, why a session may not write on top of a version of the object, or that it
// could not be found out.
func (c *confirmations) check(ctx context.Context, t target, version string, sessions map[string]fence.Session) map[string]error {
	unknown := map[string]fence.Session{}
	c.mu.Lock()
	have := c.of[t]
	for node, s := range sessions {
		if have != nil && have.version == version {
			if _, ok := have.sessions[s]; ok {
				continue
			}
		}
		unknown[node] = s
	}
	c.mu.Unlock()
	var g errgroup.Group
	g.SetLimit(confirmationsAtOnce)
	var mu sync.Mutex
	failed := map[string]error{}
	for node, s := range unknown {
		g.Go(func() error {
			c.reads.Inc()
			if err := fence.Check(ctx, c.client, s); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed[node] = err
			}
			return nil
		})
	}
	_ = g.Wait() // its functions return no error
	return failed
}

// wrote notes that this replica has made one version of another, for sessions that were confirmed.
func (c *confirmations) wrote(t target, before, after string, sessions map[string]fence.Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	have := c.of[t]
	if have == nil {
		have = &confirmed{}
		c.of[t] = have
		c.order = append(c.order, t)
		for len(c.order) > maxConfirmed {
			delete(c.of, c.order[0])
			c.order = c.order[1:]
		}
	}
	if have.version != before || len(have.sessions)+len(sessions) > maxConfirmedBy {
		have.sessions = map[fence.Session]struct{}{}
	}
	have.version = after
	for _, s := range sessions {
		if len(have.sessions) < maxConfirmedBy {
			have.sessions[s] = struct{}{}
		}
	}
}

// forget drops a session that has ended.
func (c *confirmations) forget(s fence.Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, have := range c.of {
		delete(have.sessions, s)
	}
}
