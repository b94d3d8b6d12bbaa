package kube

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

const (
	recheckGranted = 5 * time.Minute
	recheckRefused = time.Minute
)

// objectAccess decides whether members may have their object: by reviews, and by a read as the node
// before a right is taken from it.
type objectAccess struct {
	reader *objectReader
	access *Access
	review chan struct{} // bounds the reviews in flight
	wg     sync.WaitGroup
}

// begin has a member reviewed, unless it is being reviewed. The object's lock is held.
func (a *objectAccess) begin(ctx context.Context, s *watchedObject, m *member) {
	if !m.asking {
		m.asking = true
		a.wg.Go(func() { a.authorise(ctx, s, m) })
	}
}

// beginOthers has the members reviewed that the watch was not opened as, the first one too if
// another was picked. The object's lock is held.
func (a *objectAccess) beginOthers(ctx context.Context, s *watchedObject) {
	for m := range s.members {
		if m != s.opener && m.access == checking {
			a.begin(ctx, s, m)
		}
	}
}

// authorise asks about a member until the answer is believed.
func (a *objectAccess) authorise(ctx context.Context, s *watchedObject, m *member) {
	defer func() {
		s.mu.Lock()
		m.asking = false
		s.mu.Unlock()
	}()
	for {
		if a.reviewOnce(ctx, s, m) {
			return
		}
		s.mu.Lock()
		wait := time.Until(m.next)
		s.mu.Unlock()
		sleep(ctx, wait, nil)
		if ctx.Err() != nil {
			return
		}
	}
}

// reviewOnce reports whether the matter is settled for now.
func (a *objectAccess) reviewOnce(ctx context.Context, s *watchedObject, m *member) bool {
	s.mu.Lock()
	if m.left || m.busy {
		s.mu.Unlock()
		return true
	}
	if s.opener == m && m.access == checking { // the watch itself shows it
		m.next = time.Now().Add(50 * time.Millisecond)
		s.mu.Unlock()
		return false
	}
	first := m.access == checking && m.refusedSince.IsZero()
	asked := time.Now()
	m.busy = true
	s.mu.Unlock()
	d, err := a.ask(ctx, s.ref, m.node, first)

	s.mu.Lock()
	m.busy = false
	switch {
	case m.left:
		s.mu.Unlock()
		return true
	case err != nil: // no answer: the last decision stays
		m.delay()
		settled := m.access != checking && m.refusedSince.IsZero()
		s.mu.Unlock()
		return settled
	case d.Allowed, m.access == granted && !m.checked.Before(asked):
		// The second: in the meantime the watch was opened as this node. kube-apiserver has
		// admitted it after it was asked here, so this answer is of a graph that lagged.
		s.grant(m)
		s.mu.Unlock()
		return true
	}
	why := apierrors.NewForbidden(s.ref.Resource.GroupResource(), s.ref.Name, fmt.Errorf("node %s: %s", m.node, d.Reason))
	settled := s.refuse(m, why, false)
	read := !settled && m.lasting() && !m.denied
	s.mu.Unlock()
	if read {
		return a.readToDecide(ctx, s, m)
	}
	return settled
}

// ask has a member reviewed when there is room.
func (a *objectAccess) ask(ctx context.Context, ref Ref, node types.NodeName, remembered bool) (Decision, error) {
	select {
	case a.review <- struct{}{}:
	case <-ctx.Done():
		return Decision{}, ctx.Err()
	}
	defer func() { <-a.review }()
	ask := a.access.Review
	if remembered {
		ask = a.access.Allowed
	}
	return ask(ctx, node, Attributes{Verb: "watch", Resource: ref.Resource, Namespace: ref.Namespace, Name: ref.Name})
}

// readToDecide reads the object as the node: an object that a node's pods need is never withdrawn
// because of reviews alone. It reports whether the decision is made for now.
func (a *objectAccess) readToDecide(ctx context.Context, s *watchedObject, m *member) bool {
	_, err := a.reader.get(ctx, s.ref, m.node)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case m.left:
		return true
	case err == nil || apierrors.IsNotFound(err):
		s.grant(m)
		return true
	case apierrors.IsForbidden(err):
		return s.refuse(m, err, true)
	default:
		m.delay()
		return false
	}
}
