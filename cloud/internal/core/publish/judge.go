package publish

import (
	"math/rand/v2"
	"time"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

type standing int8

const (
	undecided standing = iota // Kubernetes has not decided yet whether the node may have it
	granted
	refused
)

const (
	// graceRefused is for how long refusals must last, without a permission in between, before
	// they are believed: the Node authorizer lags behind right after a pod is bound or an API
	// server has started.
	graceRefused = 30 * time.Second
	// graceUnserved is the same for resources that kube-apiserver does not serve, or not to
	// cloudcore.
	graceUnserved = 10 * time.Second
	decideSoon    = 2 * time.Second // how long an undecided interest holds up the others of its resource
	recheckSoon   = time.Minute     // of refused interests
	recheckLater  = 5 * time.Minute // of granted ones
)

// moment is how long after its session began something was. Each node has some dozen interests, and
// with a time.Time for each of its three moments an interest would be a third larger.
type moment time.Duration

// never is the moment of an event that has not been: now is always after it.
const never moment = 0

func (m moment) sub(earlier moment) time.Duration { return time.Duration(m - earlier) }

// review is how far asking about an interest has come. The session's loop owns it.
type review struct {
	refusedSince moment // of the first refusal since the last permission; never: not refused
	checked      moment // when the last answer was believed
	waiting      *kube.Waiting
	retry        *time.Timer
	tries        int32
	busy         bool // it is being asked, waits for its turn, or for the next attempt
	final        bool // no answer changes anything
}

// cancel removes a waiting interest from the line.
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
	allowed bool
	grace   time.Duration // of a refusal
	refusal error         // why not; nil with allowed false: there was no answer
}

// judge applies an answer: it returns the standing of an interest, and the time until the next
// review, 0 for not before the next recheck. A granted interest stays so until a refusal has
// lasted.
func judge(now moment, is standing, r *review, v verdict) (standing, time.Duration) {
	switch {
	case v.allowed:
		r.refusedSince, r.checked, r.tries = never, now, 0
		return granted, 0
	case v.refusal == nil:
		r.tries++
		return is, backoff(r.tries)
	case r.refusedSince == never:
		r.refusedSince, r.tries = now, 0
	}
	r.tries++
	if is == refused || now.sub(r.refusedSince) >= v.grace {
		r.checked, r.tries = now, 0
		return refused, 0
	}
	return is, backoff(r.tries)
}

func backoff(tries int32) time.Duration {
	base := min(50*time.Millisecond<<min(tries-1, 8), 10*time.Second)
	return base/2 + rand.N(base/2)
}
