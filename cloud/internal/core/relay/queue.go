package relay

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/recovery"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

const (
	workers    = 8   // writes of one node at kube-apiserver at once
	mostEvents = 7   // of them, of events: a status waits for no event
	mostOthers = 7   // of them, of all that is no event: events have a worker left
	maxJobs    = 512 // writes of one node that wait; the edge itself keeps at most 64 on the way
	firstTry   = 200 * time.Millisecond
	lastTry    = 10 * time.Second
	// believeForbidden is how long a write is retried after a 403: right after a pod is bound, or
	// an apiserver has started, the Node authorizer lags behind.
	believeForbidden = 30 * time.Second
	// attemptTimeout is for one attempt: a kube-apiserver that has gone silent is no reason to wait
	// for TCP to notice.
	attemptTimeout = 30 * time.Second
)

// job is one write on its way.
type job struct {
	write  *topicpb.Write
	result message.Topic[*topicpb.WriteResult]
	do     func(context.Context, *topicpb.Write) outcome
	// turn waits until the write may be made, where its node has much to write or it is large;
	// nil: at once.
	turn  func(context.Context) (leave func())
	tries int
	// forbidden is since when kube-apiserver has answered 403 each time, zero where the last answer
	// was another.
	forbidden time.Time
}

// kind is the class of a lane's writes. Statuses and all else that is no event go before events:
// the cluster acts on a status, and an event is read later.
type kind int

const (
	others kind = iota
	events
	kinds
)

func kindOf(w *topicpb.Write) kind {
	if w.GetResource().GetResource() == "events" {
		return events
	}
	return others
}

// atOnce is how many of a session's workers may be at writes of one kind.
var atOnce = [kinds]int{others: mostOthers, events: mostEvents}

// lane is the writes of one object, or the events about one, in order.
type lane struct {
	key   string
	kind  kind
	jobs  []*job
	ready time.Time // not before; zero: at once
}

// queue is the writes of one session. Writes of one object are made one after another, those of
// different objects don't wait for each other: one that is refused or slow holds up its object
// alone. Only when kube-apiserver is away or overloaded, the whole node waits.
type queue struct {
	finish  func(context.Context, *job, outcome) error
	loop    *cloudhub.Loop // starts workers
	working sync.WaitGroup // Add by the loop alone

	mu      sync.Mutex
	lanes   map[string]*lane // those with a job
	idle    [kinds][]*lane   // may start, in order
	later   []*lane          // wait for their time
	busy    int              // workers
	waiting int              // of them, waiting for the node's turn: without a request at kube-apiserver
	making  [kinds]int       // of them, at a write of a kind
	last    kind             // that a worker took
	jobs    int
	holdoff time.Time // of the node
	misses  int       // in a row, of the node
	ctx     context.Context
	fail    func(error)
	timer   *time.Timer // when to look again; nil before the first time
	stopped bool
}

// newQueue makes a queue whose jobs end in finish. It makes no write before start.
func newQueue(finish func(context.Context, *job, outcome) error) *queue {
	q := &queue{finish: finish, lanes: map[string]*lane{}}
	q.loop = cloudhub.NewLoop(q.turn)
	return q
}

// order is the key of a write's lane: writes of one object, and events about one object, which
// people read in the order in which they happened.
func order(w *topicpb.Write) string {
	if kindOf(w) == events && w.GetUid() != "" {
		return "events about " + w.GetUid()
	}
	return key(w)
}

// push takes a job. At the bound the session ends: its edge doesn't keep to the window.
func (q *queue) push(j *job) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.jobs >= maxJobs {
		return &link.CloseError{Code: link.CloseProtocol, Reason: fmt.Sprintf("more than %d writes without an answer", maxJobs)}
	}
	q.jobs++
	k := order(j.write)
	l, ok := q.lanes[k]
	if !ok {
		l = &lane{key: k, kind: kindOf(j.write)}
		q.lanes[k] = l
		q.ready(l)
	}
	l.jobs = append(l.jobs, j)
	q.signal()
	return nil
}

func (q *queue) signal() { q.loop.Signal() }

// ready puts a lane at the end of those that may start. The lock is held.
func (q *queue) ready(l *lane) { q.idle[l.kind] = append(q.idle[l.kind], l) }

// startable is how many lanes could start if there were workers without end. The lock is held.
func (q *queue) startable() (n int) {
	for k := range kinds {
		n += max(0, min(len(q.idle[k]), atOnce[k]-q.making[k]))
	}
	return n
}

// mayStart reports whether there is room for one more worker. While kube-apiserver refuses the
// whole node one worker probes it; those that wait for their turns don't count. The lock is held.
func (q *queue) mayStart() bool {
	return q.busy < workers && (q.misses == 0 || q.busy == q.waiting)
}

// next is the kind of which a worker takes a lane; ok is false where none may start. While
// kube-apiserver refuses the whole node the kinds take turns: the refusal may be for one of them
// alone. The lock is held.
func (q *queue) next() (next kind, ok bool) {
	order := [kinds]kind{others, events}
	if q.misses > 0 && q.last == others {
		order = [kinds]kind{events, others}
	}
	for _, k := range order {
		if len(q.idle[k]) > 0 && q.making[k] < atOnce[k] {
			return k, true
		}
	}
	return 0, false
}

// start lets the writes be made until ctx ends or stop is called. fail receives the reason why the
// queue can't continue.
func (q *queue) start(ctx context.Context, fail func(error)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.stopped {
		q.ctx, q.fail = ctx, fail
		q.loop.Start(ctx, fail)
	}
}

// stop returns when no write is on its way any more.
func (q *queue) stop() {
	q.mu.Lock()
	q.stopped = true
	if q.timer != nil {
		q.timer.Stop()
	}
	q.mu.Unlock()
	q.loop.Stop()
	q.working.Wait()
}

// turn starts workers for lanes that may start, and arranges for its next call.
func (q *queue) turn(context.Context) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	wait := time.Duration(0)
	soonest := func(d time.Duration) {
		if wait == 0 || d < wait {
			wait = d
		}
	}
	rest := q.later[:0]
	for _, l := range q.later {
		if d := l.ready.Sub(now); d > 0 {
			soonest(d)
			rest = append(rest, l)
			continue
		}
		q.ready(l)
	}
	clear(q.later[len(rest):])
	q.later = rest
	if d := q.holdoff.Sub(now); d > 0 {
		if q.startable() > 0 {
			soonest(d)
		}
	} else {
		for n := q.startable(); q.mayStart() && n > 0; n-- {
			q.busy++
			q.working.Go(q.worker)
		}
	}
	switch {
	case wait == 0 || q.stopped:
	case q.timer == nil:
		q.timer = time.AfterFunc(wait, q.signal)
	default:
		q.timer.Reset(wait) // a lane that is due earlier is still in the map, or was started just now
	}
	return nil
}

func (q *queue) worker() {
	if err := recovery.Do(q.ctx, "relay.queue", func() error { return q.work(q.ctx, q.finish) }); err != nil {
		q.fail(err)
	}
}

// take returns the next lane's first job. done is the worker's previous lane, nil at first.
func (q *queue) take(done *lane) (*lane, *job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if done != nil {
		q.making[done.kind]--
	}
	k, ok := q.next()
	if !ok || time.Now().Before(q.holdoff) || q.misses > 0 && q.busy-q.waiting > 1 {
		q.busy--
		if ok {
			q.signal()
		}
		return nil, nil
	}
	l := q.idle[k][0]
	q.idle[k][0] = nil
	q.idle[k] = q.idle[k][1:]
	q.making[k]++
	q.last = k
	if _, more := q.next(); more && q.busy < workers {
		q.signal() // this worker's last kind may have room now
	}
	return l, l.jobs[0]
}

// work makes writes until no lane may start.
func (q *queue) work(ctx context.Context, finish func(context.Context, *job, outcome) error) error {
	var l *lane
	for {
		var j *job
		if l, j = q.take(l); j == nil {
			return nil
		}
		o := q.attempt(ctx, j)
		if ctx.Err() != nil {
			return nil
		}
		if o.ends != nil {
			return o.ends
		}
		o = j.believe(o, time.Now())
		if o.retry != never {
			klog.FromContext(ctx).V(3).Info("Failed to write, retrying", "object", l.key, "try", j.tries+1, "err", o.why)
			q.back(l, j, o)
			continue
		}
		if err := finish(ctx, j, o); err != nil {
			return err
		}
		q.done(l)
	}
}

// believe makes a refusal of one that has lasted. It counts from the first 403, however long
// kube-apiserver was away before.
func (j *job) believe(o outcome, now time.Time) outcome {
	switch {
	case o.retry != unsure:
		j.forbidden = time.Time{}
	case j.forbidden.IsZero():
		j.forbidden, o.err = now, nil
	case now.Sub(j.forbidden) < believeForbidden:
		o.err = nil
	default:
		o.retry = never
	}
	return o
}

func (q *queue) attempt(ctx context.Context, j *job) outcome {
	if j.turn != nil {
		q.waits(1)
		leave := j.turn(ctx)
		q.waits(-1)
		defer leave()
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	return j.do(ctx, j.write)
}

// waits counts the workers that wait for their turns.
func (q *queue) waits(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting += n
	if n > 0 && q.misses > 0 {
		q.signal() // another one may try in the meantime
	}
}

// done takes the first job off its lane.
func (q *queue) done(l *lane) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.misses > 0 {
		q.misses, q.holdoff = 0, time.Time{}
		q.signal() // all workers may go again
	}
	q.jobs--
	l.jobs[0] = nil
	l.jobs = l.jobs[1:]
	if len(l.jobs) == 0 {
		delete(q.lanes, l.key)
		return
	}
	q.ready(l)
}

// back puts a lane off. An attempt that got further than the one before it counts as the first that
// failed: kube-apiserver answers, if not always.
func (q *queue) back(l *lane, j *job, o outcome) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if o.progressed {
		q.misses, j.tries = 0, 0
	}
	if o.retry == wholeNode {
		if !now.Before(q.holdoff) {
			q.misses++
			q.holdoff = now.Add(max(o.after, backoff(q.misses)))
		} else if after := now.Add(o.after); after.After(q.holdoff) {
			q.holdoff = after
		}
		// Another object's write is tried next: this one may be the cause of the failures.
		q.ready(l)
		q.signal()
		return
	}
	j.tries++
	l.ready = now.Add(max(o.after, backoff(j.tries)))
	q.later = append(q.later, l)
	q.signal()
}

// backoff is exponential with equal jitter: half of it is certain, so that a Retry-After of zero
// makes no busy loop.
func backoff(n int) time.Duration {
	d := cmp.Or(min(firstTry<<min(n-1, 10), lastTry), firstTry)
	return d/2 + rand.N(d/2)
}
