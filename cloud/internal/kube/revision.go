package kube

import (
	"context"
	"errors"
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
	revisionTimeout = 5 * time.Second
	// revisionGap is how long nothing may have been read for watches to be trusted: this process may
	// have been stopped, or its machine suspended.
	revisionGap = 4 * revisionPeriod
	// restartPause bounds how often all watches are opened again.
	restartPause = 10 * time.Second
)

// Revisions notices when watches can't be trusted to go on: kube-apiserver was away, or the cluster's
// revision is lower than it was. Its etcd may have been restored from a backup then, and a watch that is
// resumed at a version that is lost waits for it without a word. All watches are opened again and their
// objects read consistently.
//
// The signs: a call that got no answer, then one that did; a revision below the last one; no successful
// read for revisionGap. A consistent read of the revision every revisionPeriod is the net under them.
type Revisions struct {
	read func(context.Context) (revision uint64, answered bool, err error)
	wake chan struct{} // one slot: read now

	mu       sync.Mutex
	away     bool     // a call got no answer since the last restart
	restarts []func() // of those who watch
}

func newRevisions(read func(context.Context) (revision uint64, answered bool, err error)) *Revisions {
	return &Revisions{read: read, wake: make(chan struct{}, 1)}
}

// OnRestart has restart called when all watches are to be opened again. It must not block.
func (r *Revisions) OnRestart(restart func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.restarts = append(r.restarts, restart)
}

// Failed takes the error of a call. One that got an answer, or was given up by its caller, is no sign.
func (r *Revisions) Failed(err error) {
	if !unanswered(err) {
		return
	}
	r.mu.Lock()
	r.away = true
	r.mu.Unlock()
	r.check()
}

// unanswered reports whether err says that no kube-apiserver answered.
func unanswered(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) {
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
	var last uint64
	var lastRead, lastRestart time.Time
	for {
		pause := revisionPeriod
		revision, answered, err := r.read(ctx)
		now := time.Now().Round(0) // the wall clock: the monotonic one may stand still in a suspended machine
		r.mu.Lock()
		r.away = r.away || !answered
		away := r.away
		r.mu.Unlock()
		switch why := reason(revision, last, away, now.Sub(lastRead), lastRead.IsZero()); {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			pause = revisionRetry
			log.V(2).Info("Failed to read the cluster's revision", "err", err)
		case why == "":
			last, lastRead = revision, now
		case now.Sub(lastRestart) < restartPause:
			pause = restartPause - now.Sub(lastRestart)
		default:
			log.Info("All watches are opened again", "reason", why, "revision", revision, "before", last)
			last, lastRead, lastRestart = revision, now, now
			r.restart()
		}
		sleep(ctx, pause, r.wake)
		if ctx.Err() != nil {
			return nil
		}
	}
}

// reason is why watches can't be trusted any more, "" where they can.
func reason(revision, last uint64, away bool, gap time.Duration, first bool) string {
	switch {
	case first:
		return ""
	case revision < last:
		return "the cluster went back in time"
	case away:
		return "kube-apiserver was away"
	case gap > revisionGap:
		return "the revision was not read for long"
	}
	return ""
}

func (r *Revisions) restart() {
	r.mu.Lock()
	r.away = false
	restarts := r.restarts
	r.mu.Unlock()
	for _, f := range restarts {
		f()
	}
}
