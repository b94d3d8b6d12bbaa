package publish

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/skerry-io/skerry/cloud/internal/kube"
)

const (
	// graceRefused is for how long refusals must last, without a permission in between, before they are
	// believed: the Node authorizer lags behind right after a pod is bound or an API server has started.
	graceRefused = 30 * time.Second
	// graceUnserved is the same for what kube-apiserver does not serve, or not to cloudcore.
	graceUnserved = 10 * time.Second
	decideSoon    = 2 * time.Second // how long an undecided interest holds up the others of its resource
	recheckSoon   = time.Minute     // of refused interests
	recheckLater  = 5 * time.Minute // of granted ones
)

// review is how far asking about an interest has come. The session's loop owns it.
type review struct {
	refusedSince time.Time // of the first refusal since the last permission; zero: there was none
	checked      time.Time // when the last answer was believed
	tries        int
	busy         bool // it is being asked, waits for its turn, or for the next attempt
	final        bool // no answer changes anything
	waiting      *kube.Waiting
	retry        *time.Timer
}

// cancel takes what waits out of the line.
func (r *review) cancel() {
	if r.waiting != nil {
		r.waiting.Drop()
	}
	if r.retry != nil {
		r.retry.Stop()
	}
	r.busy = false
}

// verdict is one answer about an interest.
type verdict struct {
	interest *interest
	allowed  bool
	grace    time.Duration // of a refusal
	refusal  error         // why not; nil with allowed false: there was no answer
}

// judge is what an answer changes: the standing of an interest, or in which time it is asked again, 0 for
// not before the next recheck. What was granted stays so until a refusal has lasted.
func judge(now time.Time, is standing, r *review, v verdict) (standing, time.Duration) {
	switch {
	case v.allowed:
		r.refusedSince, r.checked, r.tries = time.Time{}, now, 0
		return granted, 0
	case v.refusal == nil:
		r.tries++
		return is, backoff(r.tries)
	case r.refusedSince.IsZero():
		r.refusedSince, r.tries = now, 0
	}
	r.tries++
	if is == refused || now.Sub(r.refusedSince) >= v.grace {
		r.checked, r.tries = now, 0
		return refused, 0
	}
	return is, backoff(r.tries)
}

func backoff(tries int) time.Duration {
	base := min(50*time.Millisecond<<min(tries-1, 8), 10*time.Second)
	return base/2 + rand.N(base/2)
}

// ask has an interest reviewed when it is this node's turn.
func (s *session) ask(i *interest) {
	if i.gone {
		return
	}
	i.review.busy = true
	first := i.standing == undecided && i.review.tries == 0
	i.review.waiting = s.part.reviews.Do(string(s.node), func() {
		if !s.enter() {
			return
		}
		defer s.wg.Done()
		v := s.ruling(i, first)
		s.mu.Lock()
		s.inbox.verdicts = append(s.inbox.verdicts, v)
		s.mu.Unlock()
		s.signal()
	})
}

// enter reports whether the session still lives, and keeps Stop waiting for s.wg.Done if it does.
func (s *session) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.ctx.Err() != nil {
		return false
	}
	s.wg.Add(1)
	return true
}

// ruling asks once: whether the node may have the interest, and whether cloudcore can follow it. An
// object's get is enough to hold it: of claims, volumes and the like the Node authorizer allows no list.
func (s *session) ruling(i *interest, remembered bool) verdict {
	ask := s.part.access.Review
	if remembered {
		ask = s.part.access.Allowed
	}
	at := kube.Attributes{Resource: i.gvr, Namespace: i.sel.Namespace, Name: i.sel.Name, Fields: i.sel.Fields, Labels: i.sel.Labels}
	verbs := []string{"list", "watch"}
	if i.sel.Name != "" {
		verbs = []string{"get"}
	}
	for _, verb := range verbs {
		at.Verb = verb
		d, err := ask(s.ctx, s.node, at)
		if err != nil {
			return verdict{interest: i}
		}
		if !d.Allowed {
			reason := d.Reason
			if reason == "" {
				reason = "it may not " + verb + " them"
			}
			why := apierrors.NewForbidden(i.gvr.GroupResource(), i.sel.Name, fmt.Errorf("node %s: %s", s.node, reason))
			return verdict{interest: i, grace: graceRefused, refusal: why}
		}
	}
	refused, err := s.part.collections.Followable(s.ctx, i.gvr)
	if err != nil {
		return verdict{interest: i}
	}
	return verdict{interest: i, allowed: refused == nil, grace: graceUnserved, refusal: refused}
}

// decide acts on an answer.
func (s *session) decide(v verdict) {
	i := v.interest
	if i.gone {
		return
	}
	before := i.standing
	var again time.Duration
	i.standing, again = judge(time.Now(), before, &i.review, v)
	i.review.busy = again > 0
	if again > 0 {
		i.review.retry = time.AfterFunc(again, func() { s.askAgain(i) })
	}
	switch {
	case i.standing == before:
	case i.standing == granted:
		i.synced = false
		s.attach(i)
	case i.standing == refused:
		i.resource.unwant(i) // revoked, or held from an earlier session: what no other interest wants goes from the edge
		s.detach(i)
		s.refuse(i, v.refusal)
	}
}

// askAgain may be called by any goroutine.
func (s *session) askAgain(i *interest) {
	s.mu.Lock()
	if !s.over {
		s.inbox.due = append(s.inbox.due, i)
	}
	s.mu.Unlock()
	s.signal()
}

// recheck asks again about what was decided some time ago.
func (s *session) recheck() {
	now := time.Now()
	for _, i := range s.interests {
		if i.dependencies() || i.single != nil || i.review.busy || i.review.final || i.resource == nil {
			continue
		}
		age := now.Sub(i.review.checked)
		switch {
		case i.standing == granted && age >= recheckLater, i.standing == refused && age >= recheckSoon:
			s.ask(i)
		case i.standing == granted && !i.synced && i.resource.feed != nil && !i.resource.feed.store.HasSynced():
			// cloudcore could follow it and can't any more: say so instead of letting the edge wait without a word.
			if err := i.resource.feed.store.Failure(); err != nil && !i.resource.told {
				i.resource.told = true
				s.refuse(i, unfollowed(i.gvr.Resource, err))
			}
		}
	}
}

// unfollowed is why an interest that the node may have brings nothing.
func unfollowed(resource string, err error) error {
	text := fmt.Sprintf("cloudcore can't follow %s: %v", resource, err)
	if s, ok := errors.AsType[*apierrors.StatusError](err); ok {
		told := s.ErrStatus
		told.Message = text
		return &apierrors.StatusError{ErrStatus: told}
	}
	return apierrors.NewServiceUnavailable(text)
}
