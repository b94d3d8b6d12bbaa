package route

import (
	"slices"
	"time"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
)

// keys are all keys of a StaticRoute or of our routes in the kernel, and the set of those to plan.
type keys struct {
	all     map[netroute.Key]*keyState
	placed  map[string]*claim // by name: those that compete for a key
	touched map[netroute.Key]struct{}
	timed   map[netroute.Key]struct{} // for which something is due at some time
}

func newKeys() keys {
	return keys{
		all: map[netroute.Key]*keyState{}, placed: map[string]*claim{},
		touched: map[netroute.Key]struct{}{}, timed: map[netroute.Key]struct{}{},
	}
}

func (k *keys) touch(key netroute.Key) { k.touched[key] = struct{}{} }

// touchedStates returns the states of the keys to plan.
func (k *keys) touchedStates() map[netroute.Key]keyState {
	states := make(map[netroute.Key]keyState, len(k.touched))
	for key := range k.touched {
		if s := k.all[key]; s != nil {
			states[key] = *s
		}
	}
	return states
}

// concerns reports whether a key has state although its route may be another's.
func (k *keys) concerns(key netroute.Key) bool {
	s := k.all[key]
	return s != nil && (s.wanted || len(s.claims) > 0)
}

func (k *keys) wants(key netroute.Key) bool {
	s := k.all[key]
	return s != nil && s.wanted
}

// update takes a reading of the kernel in.
func (k *keys) update(have map[netroute.Key]*keyState) {
	for key, s := range k.all {
		now := have[key]
		if now == nil {
			now = &keyState{}
		}
		if !sameFound(s.ours, now.ours) || len(s.foreign) != len(now.foreign) {
			k.touch(key)
		}
		s.ours, s.foreign = now.ours, now.foreign
		delete(have, key)
	}
	for key, s := range have {
		k.all[key] = s
		k.touch(key)
	}
}

func sameFound(a, b *netroute.Found) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Dead == b.Dead && a.Satisfies(b.Route) && b.Satisfies(a.Route)
}

// onOurs processes an event about a route of ours. It returns false if the event doesn't give the
// current route.
func (k *keys) onOurs(e netroute.Event) (clear bool) {
	s := k.all[e.Route.Key]
	if s == nil {
		s = &keyState{}
		k.all[e.Route.Key] = s
	}
	k.touch(e.Route.Key)
	switch {
	case !e.Gone:
		s.ours = e.Route
	case s.ours == nil || len(s.ours.Hops) <= 1 || e.Route.Satisfies(s.ours.Route):
		s.ours = nil
	default:
		return false
	}
	return true
}

// place adds a StaticRoute to the competitors for its key, or removes it (nil), and returns the
// names of the others that are affected.
func (k *keys) place(name string, c *claim) (others []string) {
	if was := k.placed[name]; was != nil {
		if was == c {
			k.touch(c.route.Key)
			return nil
		}
		s := k.all[was.route.Key]
		s.claims = slices.DeleteFunc(slices.Clone(s.claims), func(x *claim) bool { return x == was })
		delete(k.placed, name)
		k.touch(was.route.Key)
		for _, other := range s.claims {
			others = append(others, other.name)
		}
	}
	if c == nil {
		return others
	}
	s := k.all[c.route.Key]
	if s == nil {
		s = &keyState{} // whether another's route has the key is reported by the kernel when ours is added
		k.all[c.route.Key] = s
	}
	s.claims = append(slices.Clone(s.claims), c)
	slices.SortFunc(s.claims, (*claim).before)
	k.placed[name] = c
	k.touch(c.route.Key)
	return others
}

// lostOurs reports whether a route of ours is missing among the keys to plan: the kernel drops
// routes with their interfaces, and may have reported the route first.
func (k *keys) lostOurs() bool {
	for key := range k.touched {
		if s := k.all[key]; s != nil && s.settled && s.ours == nil {
			return true
		}
	}
	return false
}

// settle drops a key without state, and records whether an action is due for it.
func (k *keys) settle(key netroute.Key, s *keyState) {
	if !s.wrote.IsZero() || s.drift.count > 0 {
		k.timed[key] = struct{}{}
	} else {
		delete(k.timed, key)
	}
	if s.ours == nil && len(s.claims) == 0 {
		delete(k.all, key)
		delete(k.timed, key)
	}
}

// overdue touches the keys for which it is time. It reports whether a change has not been confirmed
// by the kernel in time.
func (k *keys) overdue(now time.Time, confirm time.Duration) (unconfirmed bool) {
	for key := range k.timed {
		s := k.all[key]
		if !s.wrote.IsZero() && now.Sub(s.wrote) >= confirm {
			s.wrote, unconfirmed = time.Time{}, true
			k.touch(key)
		}
		if due := s.due(); !due.IsZero() && !now.Before(due) {
			k.touch(key)
		}
	}
	return unconfirmed
}

// unread reports whether a change made before that time has not been read back: a route set at the
// moment when a link opened is in the kernel, and not in the view. A key that is written again and
// again is not waited for twice.
func (k *keys) unread(before time.Time) bool {
	for key := range k.timed {
		if s := k.all[key]; !s.wrote.IsZero() && s.wrote.Before(before) {
			return true
		}
	}
	return false
}

// next calls at with each time at which an action is due.
func (k *keys) next(confirm time.Duration, at func(time.Time)) {
	for key := range k.timed {
		s := k.all[key]
		if !s.wrote.IsZero() {
			at(s.wrote.Add(confirm))
		}
		at(s.due())
	}
}
