package cloudhub

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/link"
)

// table holds at most one attached session a node, and lets a newer one in only when the older
// has fully ended.
type table struct {
	max       int
	elsewhere func() bool // may be nil

	mu       sync.Mutex
	slots    map[types.NodeName]*slot
	draining bool
	changed  chan struct{} // closed and replaced whenever a slot goes; for waits until all slots are free
}

// slot is a node's place. Two sessions can be in it: the newest, which may still be waiting, and
// the attached one, whose parts run. A third that comes takes the place of the newest, which leaves
// at once, so no more than one ever waits.
type slot struct {
	newest   *session
	attached *session
}

func newTable(bound int, elsewhere func() bool) *table {
	return &table{max: bound, elsewhere: elsewhere, slots: map[types.NodeName]*slot{}, changed: make(chan struct{})}
}

// enter makes s the newest session of its node and returns those that it replaces. An error is a
// *link.CloseError, the reason for refusing s.
func (t *table) enter(s *session) (older []*session, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.draining {
		return nil, &link.CloseError{Code: link.CloseShutdown, Reason: "cloudcore stops"}
	}
	p := t.slots[s.node]
	if p == nil {
		if len(t.slots) >= t.max {
			return nil, t.full()
		}
		p = &slot{}
		t.slots[s.node] = p
	}
	for _, other := range []*session{p.newest, p.attached} {
		if other == nil || slices.Contains(older, other) {
			continue
		}
		// An equal epoch is a copied disk or a store that forgot: neither can tell which of the
		// two is the newer.
		if other.epoch >= s.epoch {
			return nil, &link.CloseError{Code: link.CloseReplaced,
				Reason: fmt.Sprintf("a session of this node with epoch=%d is open, this one has %d", other.epoch, s.epoch)}
		}
		older = append(older, other)
	}
	p.newest = s
	return older, nil
}

// full is how a node is refused that finds no place. Where another replica has one, it is not to
// wait: behind one name there may be several replicas.
func (t *table) full() error {
	if t.elsewhere != nil && t.elsewhere() {
		return &link.CloseError{Code: link.CloseShutdown, Reason: fmt.Sprintf("all %d sessions are taken, and another replica has room: dial again", t.max)}
	}
	return &link.CloseError{Code: link.CloseOverloaded, Reason: fmt.Sprintf("all %d sessions are taken", t.max)}
}

// attach waits until the node's attached session has ended and puts s in its place.
func (t *table) attach(ctx context.Context, s *session) error {
	for {
		t.mu.Lock()
		p := t.slots[s.node]
		switch {
		case p == nil || p.newest != s:
			t.mu.Unlock()
			return &link.CloseError{Code: link.CloseReplaced, Reason: "a newer session of this node took over"}
		case t.draining:
			t.mu.Unlock()
			return &link.CloseError{Code: link.CloseShutdown, Reason: "cloudcore stops"}
		case p.attached == nil:
			p.attached = s
			t.mu.Unlock()
			return nil
		}
		before := p.attached
		t.mu.Unlock()
		select {
		case <-before.ended:
		case <-s.conn.Done():
			return s.conn.Err()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// leave takes s out, whether it was attached or waiting. Before it is called for an attached
// session every part of it has returned.
func (t *table) leave(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.slots[s.node]
	if p == nil {
		return
	}
	if p.newest == s {
		p.newest = nil
	}
	if p.attached == s {
		p.attached = nil
		close(s.ended)
	}
	if p.newest == nil && p.attached == nil {
		delete(t.slots, s.node)
		close(t.changed)
		t.changed = make(chan struct{})
	}
}

// get returns the node's attached session.
func (t *table) get(node types.NodeName) (*session, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.slots[node]; p != nil && p.attached != nil {
		return p.attached, true
	}
	return nil, false
}

// all returns every session of a node, one that waits included.
func (t *table) all(node types.NodeName) []*session {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.slots[node]
	if p == nil {
		return nil
	}
	return p.both(nil)
}

// len is how many nodes have a place.
func (t *table) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.slots)
}

// attached returns every attached session, in no order.
func (t *table) attached() []*session {
	t.mu.Lock()
	defer t.mu.Unlock()
	sessions := make([]*session, 0, len(t.slots))
	for _, p := range t.slots {
		if p.attached != nil {
			sessions = append(sessions, p.attached)
		}
	}
	return sessions
}

// drain refuses all new sessions and returns every session there is.
func (t *table) drain() []*session {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.draining = true
	var sessions []*session
	for _, p := range t.slots {
		sessions = p.both(sessions)
	}
	return sessions
}

// empty waits until no session is left; when ctx ends first it returns the nodes whose sessions
// have not ended.
func (t *table) empty(ctx context.Context) []types.NodeName {
	for {
		t.mu.Lock()
		changed := t.changed
		left := make([]types.NodeName, 0, len(t.slots))
		for node := range t.slots {
			left = append(left, node)
		}
		t.mu.Unlock()
		if len(left) == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			slices.Sort(left)
			return left
		}
	}
}

func (p *slot) both(to []*session) []*session {
	if p.attached != nil {
		to = append(to, p.attached)
	}
	if p.newest != nil && p.newest != p.attached {
		to = append(to, p.newest)
	}
	return to
}
