package publish

import (
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

func (s *session) hold(ref kube.Ref, r *resourceSync) {
	if h, ok := s.held[ref]; ok {
		h.users++
		return
	}
	h := &heldObject{users: 1}
	s.held[ref] = h
	h.watch = s.part.objects.Watch(ref, s.node, func(state kube.ObjectState) {
		old := h.state.Swap(&state)
		if state.CaughtUp {
			h.caughtUp.Store(true)
			defer s.signal()
		}
		if old != nil && alike(*old, state) {
			return // a new watch delivers objects again that were read just before
		}
		switch {
		case state.Err != nil || old != nil && old.Err != nil: // the edge's rights have changed
			r.note(ref.Key, pressing)
			s.signal()
		case old == nil || !old.Known:
			r.note(ref.Key, gatherFirst)
			s.wake(gatherFirst)
		default:
			wait := s.updateWait()
			r.note(ref.Key, wait)
			s.wake(wait)
		}
	})
}

// alike reports whether a and b are equal for an edge.
func alike(a, b kube.ObjectState) bool {
	if a.Err != nil || b.Err != nil || a.Known != b.Known || (a.Object == nil) != (b.Object == nil) {
		return false
	}
	return a.Object == nil || a.Object.Sum == b.Object.Sum
}

func (s *session) unhold(ref kube.Ref) {
	h, ok := s.held[ref]
	if !ok {
		return
	}
	if h.users--; h.users == 0 {
		delete(s.held, ref)
		h.watch.Cancel()
	}
}

// follow sets the standing of an interest in one object by its watch.
func (s *session) follow(i *interest) {
	h, ok := s.held[*i.single]
	if !ok {
		return
	}
	switch state := h.load(); {
	case state.Err != nil && i.standing != refused:
		i.standing, i.synced = refused, false
		s.refuse(i, state.Err)
	case state.Err == nil && state.Known && i.standing != granted:
		i.standing, i.synced = granted, false
	}
}
