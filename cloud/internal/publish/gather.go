package publish

import "time"

// Where many objects are watched one by one, their changes come one by one too. Each in a State of
// its own would be compressed, sent, committed to the edge's disk and acknowledged alone, which
// costs several times what there is to say. So they wait for each other, as Nagle has it (RFC 896):
// one that comes alone goes at once, those that follow it soon after go together. Whatever else is
// to be sent goes at once, with all that waits before it: the order in the queue is always kept.
const (
	// gatherFirst is how long the first word of an object that is watched alone waits for others: a
	// pod with hundreds of ConfigMaps has as many watches opened for it.
	gatherFirst = 5 * time.Millisecond
	// gatherUpdates is how long an update of one waits when a State went out less than that ago.
	gatherUpdates = 20 * time.Millisecond
	// gatherMarks is how long the sync markers of one resource wait for those of others while a
	// session resumes: the rights and collections of some 14 resources become known one by one, and
	// each marker in a State of its own costs an edge that comes back twice what there is to say.
	gatherMarks = 20 * time.Millisecond
	// resumeSoon is how long after its start a session resumes at most. A resource that takes
	// longer holds nothing up.
	resumeSoon = 2 * time.Second
)

// gatherUpdate is signal for an update of an object that is watched alone.
func (s *session) gatherUpdate() {
	if time.Since(time.Unix(0, s.sent.Load())) < gatherUpdates {
		s.gather(gatherUpdates)
		return
	}
	s.signal()
}

// gather is signal, in a moment. Like gatherUpdate it may be called after the session's end.
func (s *session) gather(wait time.Duration) {
	s.mu.Lock()
	begun := s.inbox.gathering
	s.inbox.gathering = true
	s.mu.Unlock()
	if begun {
		return
	}
	time.AfterFunc(wait, func() {
		s.mu.Lock()
		s.inbox.gathering = false
		s.mu.Unlock()
		s.signal()
	})
}
