package kube

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// graceForbidden is for how long refusals must last, without a permission in between, before they
// are believed: right after a pod is bound, or an API server has started, the Node authorizer's
// graph lags behind.
const graceForbidden = 30 * time.Second

// ObjectState is the known state of one object, for one node.
type ObjectState struct {
	Known  bool    // Object, or its absence, is as at kube-apiserver
	Object *Object // nil: absent
	// CaughtUp is set in the answer to CatchUp: it is so as of the version asked for, or by a read
	// that was consistent and came later.
	CaughtUp bool
	Err      error // the node may not have it
}

// watchedObject is one object and the sessions that need it.
type watchedObject struct {
	ref  Ref
	wake chan struct{} // one slot: the members have changed

	mu         sync.Mutex
	members    map[*member]struct{}
	opener     *member
	cancel     context.CancelFunc // ends the stream of opener
	known      bool
	object     *Object
	generation uint64 // grows with every change of object
	asOf       uint64 // the resourceVersion as of which object is known
	floor      uint64 // watch events of versions up to this one are old: the object was read in the meantime
	ended      bool   // it has no members any more
}

type access int

const (
	checking access = iota
	granted
	refused
)

// member is one node that needs an object.
type member struct {
	node    types.NodeName
	changed func(ObjectState)

	// Under the lock of its object.
	access       access
	refusedSince time.Time // of the first refusal since the last permission; zero: not refused
	denied       bool      // since then a read or a watch as the node was refused, not a review alone
	checked      time.Time
	tries        int
	next         time.Time
	thrown       int       // watches as it that were refused since one lived
	held         time.Time // no watch is opened as it before
	busy         bool      // a review is in flight
	asking       bool      // authorise is running
	asks         uint64    // calls of CatchUp: the newest is answered
	caughtUp     bool      // CatchUp has succeeded, and the next state reports it
	left         bool
}

func (s *watchedObject) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// The lock must be held.

func (m *member) delay() {
	m.next = time.Now().Add(pause(m.tries))
	m.tries++
}

// hold keeps watches from being opened as the node for a while: one was refused. A review that
// allows it doesn't change that, since where reviews and requests are judged differently (an
// authorizer that lags, a proxy before kube-apiserver) the two would take turns without an end.
func (m *member) hold() {
	m.held = time.Now().Add(pause(m.thrown))
	m.thrown++
}

func pause(tries int) time.Duration {
	base := min(20*time.Millisecond<<min(tries, 10), 5*time.Second)
	return base/2 + rand.N(base/2)
}

// lasting reports whether refusals have lasted long enough to be believed.
func (m *member) lasting() bool {
	return !m.refusedSince.IsZero() && time.Since(m.refusedSince) >= graceForbidden
}

func (s *watchedObject) grant(m *member) {
	m.checked, m.tries, m.refusedSince, m.denied = time.Now(), 0, time.Time{}, false
	if m.access == granted {
		return
	}
	m.access = granted
	s.signal()
	if s.known {
		s.tell(m)
	}
}

// refuse notes a refusal, of a read or a watch as the node (denied) or of a review, and reports
// whether it is believed.
func (s *watchedObject) refuse(m *member, err error, denied bool) bool {
	now := time.Now()
	if m.refusedSince.IsZero() {
		m.refusedSince, m.tries = now, 0
	}
	m.denied = m.denied || denied
	m.delay()
	if m.access == refused {
		m.checked = now
		return true
	}
	if !m.denied || !m.lasting() {
		return false
	}
	m.checked = now
	m.access = refused
	m.changed(ObjectState{Err: err})
	if s.opener == m && s.cancel != nil {
		s.cancel()
	}
	return true
}

// pick chooses the node as which the watch is opened: one that is granted already, otherwise one
// that can be tried now. wait is the time until the next try.
func (s *watchedObject) pick() (m *member, wait time.Duration) {
	now := time.Now()
	wait = time.Hour
	for c := range s.members {
		switch {
		case c.access != refused && c.held.After(now):
			wait = min(wait, c.held.Sub(now))
		case c.access == granted && (m == nil || m.access != granted):
			m = c
		case c.access == checking && !c.next.After(now):
			if m == nil {
				m = c
			}
		case c.access == checking:
			wait = min(wait, c.next.Sub(now))
		}
	}
	return m, wait
}

// knownState is a copy of an object's known state, from before a read.
type knownState struct {
	known      bool
	object     *Object
	generation uint64
}

// snapshot is taken before a read, for refreshed.
func (s *watchedObject) snapshot() knownState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return knownState{s.known, s.object, s.generation}
}

// refreshed stores a consistent read, unless the watch has delivered something newer since the
// snapshot. It reports whether the read shows that the cluster went back in time: then the watch is
// ended, since it waits for versions that are lost.
func (s *watchedObject) refreshed(before knownState, version uint64, o *Object) (wentBack bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.generation != before.generation && s.asOf > version {
		return false
	}
	if before.known && before.object != nil && s.generation == before.generation && version < parseVersion(before.object.Revision) {
		s.asOf, wentBack = version, true
		if s.cancel != nil {
			s.cancel()
		}
	}
	s.asOf, s.floor = max(s.asOf, version), version
	s.set(o)
	return wentBack
}

// opened notes that a watch has been opened as m: kube-apiserver has granted it the object, and the
// floor of earlier watches no longer applies.
func (s *watchedObject) opened(m *member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.floor = 0
	if !m.left {
		s.grant(m)
	}
}

// initial stores the state with which a watch began, as of a version. It reports whether it has to
// be read instead: the watch may be of a lagging cache, where the object is absent or older.
func (s *watchedObject) initial(version uint64, o *Object) (read bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known && version < s.asOf || !s.known && o == nil {
		return true
	}
	s.asOf = version
	s.set(o)
	return false
}

// observed stores an object, nil for a deleted one, that a watch has delivered, unless something
// newer was read.
func (s *watchedObject) observed(version uint64, o *Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if version <= s.floor {
		return
	}
	if s.asOf = max(s.asOf, version); o == nil {
		s.asOf = version
	}
	s.set(o)
}

// progressed notes that the object is unchanged up to a version.
func (s *watchedObject) progressed(version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asOf = max(s.asOf, version)
}

// reached reports whether the state is known as of a version.
func (s *watchedObject) reached(version uint64) bool { return s.known && s.asOf >= version }

// set changes the known state and notifies the members. The lock is held.
func (s *watchedObject) set(o *Object) {
	if s.known && (s.object == nil) == (o == nil) && (o == nil || s.object.Sum == o.Sum) {
		return
	}
	s.known, s.object = true, o
	s.generation++
	for m := range s.members {
		if m.access == granted {
			s.tell(m)
		}
	}
}

// tell notifies a member of the known state, and answers CatchUp with it: a member whose right was
// in doubt when the read had come is notified once it is granted again.
func (s *watchedObject) tell(m *member) {
	m.changed(ObjectState{Known: s.known, Object: s.object, CaughtUp: m.caughtUp})
	m.caughtUp = false
}
