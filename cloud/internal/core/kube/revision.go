package kube

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
)

const (
	// revisionPeriod is how often the cluster's revision is read, revisionRetry how often while
	// kube-apiserver is away.
	revisionPeriod  = 10 * time.Second
	revisionRetry   = time.Second
	revisionTimeout = 20 * time.Second
	// revisionGap is the longest time without a read after which watches are still trusted: this
	// process may have been stopped, or its machine suspended. It is several times the timeout,
	// since reopening all watches would slow a slow kube-apiserver down further.
	revisionGap = 4 * (revisionPeriod + revisionTimeout)
	// restartPause bounds how often all watches are opened again.
	restartPause = 10 * time.Second
)

// Revisions notices when watches can't be trusted any more: kube-apiserver was away, or the
// cluster's revision is lower than it was. Its etcd may have been restored from a backup then, and
// a watch that is resumed at a version that is lost waits for it silently. All watches are opened
// again and their objects read consistently.
//
// The signs: a call that got no answer, then one that did; a revision below the last one; no
// kube-apiserver that was there at the last read, since a restore ends with the restart of all of
// them (etcd's operations guide); no successful read for revisionGap. A consistent read every
// revisionPeriod is the net under them: an outage may be shorter than the pause between two calls.
type Revisions struct {
	read func(context.Context) (s sighting, answered bool, err error)
	wake chan struct{} // one slot: read now

	mu       sync.Mutex
	away     bool     // a call got no answer since the last restart
	restarts []func() // of the watchers
	lost     []func() // called when writes may be lost
}

// sighting is the result of one read of the cluster's revision.
type sighting struct {
	revision uint64
	// servers are the identities of kube-apiservers (KEP-1965), new with each start of one.
	// Empty: not known.
	servers []string
}

func newRevisions(read func(context.Context) (s sighting, answered bool, err error)) *Revisions {
	return &Revisions{read: read, wake: make(chan struct{}, 1)}
}

// OnRestart has restart called when all watches are to be opened again. It must not block.
func (r *Revisions) OnRestart(restart func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.restarts = append(r.restarts, restart)
}

// OnLoss registers a function that is called when the cluster went back in time, or may have done
// so unobserved. It must not block.
func (r *Revisions) OnLoss(lost func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost = append(r.lost, lost)
}

// Failed takes the error of a call. One that got an answer, or was given up by its caller,
// is no sign.
func (r *Revisions) Failed(err error) {
	if !unanswered(err) {
		return
	}
	r.mu.Lock()
	r.away = true
	r.mu.Unlock()
	r.check()
}

// unanswered reports whether kube-apiserver is unreachable. One that times out on an open
// connection is only slow, and its watches continue.
func unanswered(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) {
		return false
	}
	op, _ := errors.AsType[*net.OpError](err)
	var late interface{ Timeout() bool }
	if errors.As(err, &late) && late.Timeout() && (op == nil || op.Op != "dial") {
		return false
	}
	var status apierrors.APIStatus
	return !errors.As(err, &status)
}

// check has the revision read soon.
func (r *Revisions) check() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run reads the revision until ctx ends.
func (r *Revisions) Run(ctx context.Context) error {
	log := klog.FromContext(ctx)
	var last sighting
	var lastRead, lastRestart time.Time
	for {
		pause := revisionPeriod
		seen, answered, err := r.read(ctx)
		if len(seen.servers) == 0 {
			seen.servers = last.servers
		}
		now := time.Now().Round(0) // the wall clock: the monotonic one may stop in a suspended machine
		r.mu.Lock()
		r.away = r.away || !answered
		away := r.away
		r.mu.Unlock()
		switch why := reason(seen, last, away, now.Sub(lastRead), lastRead.IsZero()); {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			pause = revisionRetry
			log.V(2).Info("Failed to read the cluster's revision", "err", err)
		case why == "":
			last, lastRead = seen, now
		case now.Sub(lastRestart) < restartPause:
			pause = restartPause - now.Sub(lastRestart)
		default:
			log.Info("Reopening all watches", "reason", why, "revision", seen.revision, "before", last.revision)
			loses := mayHaveLost(seen, last, now.Sub(lastRead))
			last, lastRead, lastRestart = seen, now, now
			r.restart(loses)
		}
		sleep(ctx, pause, r.wake)
		if ctx.Err() != nil {
			return nil
		}
	}
}

// reason is why watches can't be trusted any more, "" where they can.
func reason(seen, last sighting, away bool, gap time.Duration, first bool) string {
	switch {
	case first:
		return ""
	case seen.revision < last.revision:
		return "the cluster went back in time"
	case away:
		return "kube-apiserver was away"
	case allRestarted(seen, last):
		return "every kube-apiserver has been restarted"
	case gap > revisionGap:
		return "the revision was not read for long"
	}
	return ""
}

// allRestarted reports whether every kube-apiserver has a new identity, as after a restore (etcd's
// operations guide).
func allRestarted(seen, last sighting) bool {
	return len(last.servers) > 0 && !slices.ContainsFunc(last.servers, func(id string) bool { return slices.Contains(seen.servers, id) })
}

// mayHaveLost reports whether the cluster may have gone back in time. That kube-apiserver was away
// is no sign of it.
func mayHaveLost(seen, last sighting, gap time.Duration) bool {
	return seen.revision < last.revision || allRestarted(seen, last) || gap > revisionGap
}

func (r *Revisions) restart(loses bool) {
	r.mu.Lock()
	r.away = false
	restarts := slices.Clone(r.restarts)
	if loses {
		restarts = append(restarts, r.lost...)
	}
	r.mu.Unlock()
	for _, f := range restarts {
		f()
	}
}
