package publish

import "time"

// Where many objects are watched one by one, their changes come one by one too. Each in a State of
// its own would be compressed, sent, committed to the edge's disk and acknowledged alone, which
// costs several times its content. So they wait for each other, as Nagle has it (RFC 896):
// one that comes alone goes at once, those that follow it soon after go together. Whatever else is
// to be sent goes at once, with all that waits before it: the order in the queue is always kept.
const (
	// gatherFirst is how long the first word of an object that is watched alone waits for others: a
	// pod with hundreds of ConfigMaps has as many watches opened for it.
	gatherFirst = 5 * time.Millisecond
	// gatherUpdates is how long an update of one waits when a State went out less than that ago.
	gatherUpdates = 20 * time.Millisecond
	// gatherMarks is how long the sync markers of one resource wait for those of others while an
	// edge comes back: the rights and collections of some 14 resources become known one by one, and
	// a State for each costs 28 bytes more, with its acknowledgement. The edge holds and serves
	// these objects already. The last resource to be compared flushes all: ConfigMaps, where a pod
	// has hundreds, for whose watches kube-apiserver needs some hundred milliseconds.
	gatherMarks = time.Second
	// gatherFirstMarks is the same for an edge with an empty store, whose clients wait.
	gatherFirstMarks = 20 * time.Millisecond
	// resumeSoon bounds the time from its start in which a session resumes. A resource that takes
	// longer delays no other.
	resumeSoon = 2 * time.Second
)

// updateWait is how long an update of an object that is watched alone waits.
func (s *session) updateWait() time.Duration {
	if time.Since(time.Unix(0, s.sent.Load())) < gatherUpdates {
		return gatherUpdates
	}
	return pressing
}

// wake signals the loop after wait, or at once if wait is pressing. It may be called after the
// session's end.
func (s *session) wake(wait time.Duration) {
	if wait == pressing {
		s.signal()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeLater(wait)
}

// wakeLater is wake with the session's lock held. Of several calls the earliest counts: where the
// queue waits for longer, the loop, once it is awake, has itself woken again.
func (s *session) wakeLater(wait time.Duration) {
	q, at := &s.inbox, time.Now().Add(wait)
	switch {
	case q.alarm == nil:
		q.alarm = time.AfterFunc(wait, s.woken)
	case at.Before(q.waking):
		q.alarm.Reset(wait)
	default:
		return
	}
	q.waking = at
}

func (s *session) woken() {
	s.mu.Lock()
	s.inbox.alarm = nil // an idle session has no timer
	s.mu.Unlock()
	s.signal()
}
