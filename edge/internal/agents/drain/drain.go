// Package drain lets a device reboot, shut down or change its image only when that is safe: its
// pods have been moved away with respect for every PodDisruptionBudget, or the operator has waived
// that.
//
// It owns the node's operations and the one drain that they share: requests from the cloud and from
// the device, the phases, the attempts, our cordon. It never proceeds on missing information:
// without an API it waits. State and Step are pure; Worker calls the API; Agent keeps the state in
// the store before it acts, and asks the hooks.
//
// It is above 2,500 lines because the state machine, its API calls and its exchange with the cloud
// share one vocabulary, and no other package uses any of them.
//
// One goroutine, the loop of Agent.Run, owns the state. At most one action runs next to it, and
// ends before the next begins. Agent's methods may be called from any goroutine; those that change
// something need a running loop.
package drain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
)

// stateKey is under which the state is kept.
const stateKey = "state"

// Node has the agent's API calls; a *Worker.
type Node interface {
	Check(ctx context.Context) Result
	Cordon(ctx context.Context) Result
	Uncordon(ctx context.Context) Result
	Attempt(ctx context.Context, timeout time.Duration, progress Progress) Result
}

// Hooks carry the operations out; a *hook.Hooks.
type Hooks interface {
	Check(operation string) error
	// Run runs the hook of an operation once for each id. It returns when ctx ends, and the hook
	// keeps running: the next Run of the same id waits for it.
	Run(ctx context.Context, id, operation string, env ...string) (output string, code int, err error)
	// Kill ends the hook of an id, where it runs.
	Kill(ctx context.Context, id string) (output string, err error)
}

// Works carries out the operations that need neither a drain nor a hook: Upgrade, Config and
// ImagePull.
type Works interface {
	// Check returns why an operation can't be carried out here, whatever its turn.
	Check(o *Operation) error
	// Do continues with an operation until it has ended, or until there is a time to wait for. It
	// may be restarted at any point; ctx ends if a more urgent action is due. report returns once
	// the disk has it, or ctx has ended.
	Do(ctx context.Context, o Operation, report func(Work)) Work
	// Overturned returns the completed operation whose version was rolled back since, and why; is
	// is nil if there is no such operation. NoteOverturned clears it.
	Overturned() (is func(Operation) bool, message, output string)
	NoteOverturned() error
}

// reported is a report of a running operation; kept is closed once it is on the disk.
type reported struct {
	work Work
	kept chan struct{}
}

// PrefetchHook is the hook that brings the image of an ImageUpdate to the device and checks it,
// before anything is cordoned.
const PrefetchHook = "Prefetch"

// Config configures an Agent.
type Config struct {
	NodeName string
	Boot     string // unique ID of the device's boot
	Node     Node
	Hooks    Hooks
	Works    Works // nil: operations that need it are refused
	Store    agent.Memory
	Rules    Rules
	Events   record.EventRecorder
	// Handover lets others release their network addresses before the first eviction, so that
	// traffic moves first; Handback ends that when our cordon is removed. Both may be repeated, and
	// nil: no callback.
	Handover, Handback func(context.Context) error
}

// Errors that callers branch on.
var (
	ErrExists     = errors.New("there is an operation of this name already")
	ErrNotFound   = errors.New("there is no operation of this name")
	ErrOver       = errors.New("the operation is no longer waiting")
	ErrInvalid    = errors.New("the request is not valid")
	ErrFull       = errors.New("too many operations wait")
	errNotRunning = errors.New("the drain agent does not run")
)

const (
	maxOperations = 64  // that wait or run; more are refused
	maxKept       = 512 // including ended ones: their NodeOperations should be deleted then
)

// Agent carries out the operations of one node.
type Agent struct {
	config   Config
	inbox    chan call
	progress chan []v1alpha1.BlockedPod // one slot, the newest
	works    chan reported
	changed  chan struct{} // one slot: the state is another
	duration prometheus.Histogram
	now      func() time.Time

	mu    sync.Mutex
	shown State // a copy for Status
	ended chan struct{}
}

// call is a function for the loop to run.
type call struct {
	do   func(*State, *Facts) error
	done chan error // one slot
}

// New makes an Agent. It starts no goroutine.
func New(c Config) *Agent {
	return &Agent{
		config: c, inbox: make(chan call), progress: make(chan []v1alpha1.BlockedPod, 1), works: make(chan reported), changed: make(chan struct{}, 1), now: time.Now,
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "skerry_drain_duration_seconds", Help: "Duration of completed drains, from the request.",
			Buckets: []float64{1, 10, 60, 300, 900, 1800, 3600, 3 * 3600, 12 * 3600, 24 * 3600},
		}),
	}
}

// Describe implements prometheus.Collector.
func (a *Agent) Describe(ch chan<- *prometheus.Desc) { a.duration.Describe(ch) }

// Collect implements prometheus.Collector.
func (a *Agent) Collect(ch chan<- prometheus.Metric) { a.duration.Collect(ch) }

// Status returns a copy of the stored state, with the numbers of its phases.
func (a *Agent) Status() State {
	a.mu.Lock()
	s := a.shown.clone()
	a.mu.Unlock()
	s.Drain.PhaseNumber = s.Drain.Phase.Number()
	for i := range s.Operations {
		s.Operations[i].PhaseNumber = s.Operations[i].Phase.Number()
	}
	return s
}

// task is the action that runs.
type task struct {
	action Action
	cancel context.CancelFunc
	done   chan Result // one slot
}

// Run serves until ctx ends. An action that is under way then is taken up again by the next Run.
func (a *Agent) Run(ctx context.Context) error { return a.run(ctx, a.config.Events, func() {}) }

// run calls started when the methods can be used.
func (a *Agent) run(ctx context.Context, events record.EventRecorder, started func()) error {
	var state State
	all, err := a.config.Store.Load()
	if err != nil {
		return fmt.Errorf("reading the operations: %w", err)
	}
	kept := all[stateKey]
	if kept != nil {
		if err := json.Unmarshal(kept, &state); err != nil {
			return fmt.Errorf("reading the operations: %w", err)
		}
	}
	ended := make(chan struct{})
	a.mu.Lock()
	a.ended, a.shown = ended, state.clone()
	a.mu.Unlock()
	defer close(ended)
	l := &loop{agent: a, state: state, kept: kept, facts: Facts{Boot: a.config.Boot}, events: events}
	defer l.stop()
	if err := l.overturn(ctx); err != nil {
		return err
	}
	started()
	for {
		if err := l.turn(ctx); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// loop is the state of one Run.
type loop struct {
	agent *Agent
	state State
	kept  []byte // the state on the disk
	facts Facts
	task  *task
	// events may be nil.
	events record.EventRecorder
}

// overturn makes an operation that was carried out one that has failed: the version that it brought
// has gone back.
func (l *loop) overturn(ctx context.Context) error {
	works := l.agent.config.Works
	if works == nil {
		return nil
	}
	is, message, output := works.Overturned()
	if is == nil {
		return nil
	}
	next := l.state.clone()
	for i := range next.Operations {
		if o := &next.Operations[i]; o.own() && o.Stage == Done && is(*o) {
			o.Output, o.Reported = output, false
			o.end(Failed, l.agent.now(), v1alpha1.OperationRolledBack, message)
		}
	}
	if err := l.keep(ctx, next); err != nil {
		return err
	}
	return works.NoteOverturned()
}

// turn updates the state, saves it, starts the right action, and waits for an event.
func (l *loop) turn(ctx context.Context) error {
	next := l.state.clone()
	l.facts.Now = l.agent.now()
	action := next.Step(l.facts, l.agent.config.Rules)
	if err := l.keep(ctx, next); err != nil {
		return err
	}
	if l.task != nil && (l.task.action.Verb != action.Verb || l.task.action.Operation != action.Operation) {
		l.stop() // obsolete, and so is its result
		return nil
	}
	if l.task == nil && action.Verb != Wait {
		l.start(ctx, action)
	}
	var done chan Result
	if l.task != nil {
		done = l.task.done
	}
	var timer <-chan time.Time
	if !action.Until.IsZero() {
		timer = time.After(action.Until.Sub(l.facts.Now))
	}
	select {
	case <-ctx.Done():
	case <-timer:
	case c := <-l.agent.inbox:
		c.done <- l.call(ctx, c)
	case blocked := <-l.agent.progress:
		if l.task != nil && l.task.action.Verb == Attempt {
			next := l.state.clone()
			next.Drain.Blocked = blocked
			return l.keep(ctx, next)
		}
	case w := <-l.agent.works:
		next := l.state.clone()
		next.worked(l.task.action.Operation, w.work, l.facts)
		err := l.keep(ctx, next)
		close(w.kept)
		return err
	case res := <-done:
		action := l.task.action
		l.task.cancel()
		l.task = nil
		if ctx.Err() != nil {
			return nil // it was stopped, and has no result
		}
		next := l.state.clone()
		l.facts.Now = l.agent.now()
		next.Apply(action, res, l.facts, l.agent.config.Rules)
		return l.keep(ctx, next)
	}
	return nil
}

func (l *loop) call(ctx context.Context, c call) error {
	next, facts := l.state.clone(), l.facts
	facts.Now = l.agent.now()
	if err := c.do(&next, &facts); err != nil {
		return err
	}
	l.facts = facts
	return l.keep(ctx, next)
}

// keep puts a state on the disk, if it is another, and then in the place of the one before.
func (l *loop) keep(ctx context.Context, next State) error {
	raw, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("writing the operations: %w", err)
	}
	if !bytes.Equal(raw, l.kept) {
		if err := l.agent.config.Store.Save(ctx, map[string][]byte{stateKey: raw}); err != nil {
			return fmt.Errorf("keeping the operations: %w", err)
		}
		l.kept = raw
	}
	before := l.state
	l.state = next
	l.agent.mu.Lock()
	l.agent.shown = next.clone()
	l.agent.mu.Unlock()
	l.tell(ctx, before, next, l.facts.Now)
	select {
	case l.agent.changed <- struct{}{}:
	default:
	}
	return nil
}

func (l *loop) start(ctx context.Context, action Action) {
	a, o := l.agent, l.state.find(action.Operation)
	var operation Operation
	if o != nil {
		operation = *o
	}
	ctx, cancel := context.WithCancel(ctx)
	t := &task{action, cancel, make(chan Result, 1)}
	l.task = t
	select { // reports of an earlier attempt
	case <-a.progress:
	default:
	}
	go func() { t.done <- a.act(ctx, action, operation, l.evicted) }()
}

func (l *loop) stop() {
	if l.task != nil {
		l.task.cancel()
		<-l.task.done
		l.task = nil
	}
}

// act does one action. evicted is called for each pod that an attempt evicts.
func (a *Agent) act(ctx context.Context, action Action, o Operation, evicted func(*corev1.Pod)) Result {
	switch action.Verb {
	case Check:
		return a.config.Node.Check(ctx)
	case Cordon:
		return a.config.Node.Cordon(ctx)
	case Uncordon:
		res := a.config.Node.Uncordon(ctx)
		if res.Err == nil && a.config.Handback != nil {
			if err := a.config.Handback(ctx); err != nil {
				return Result{Err: fmt.Errorf("taking part again: %w", err)}
			}
		}
		return res
	case Attempt:
		if res := a.config.Node.Cordon(ctx); res.Err != nil { // it exists, unless it was removed since
			return res
		}
		if a.config.Handover != nil {
			if err := a.config.Handover(ctx); err != nil {
				return Result{Err: fmt.Errorf("handing over: %w", err), Interrupted: true} // no pod was evicted: it does not count as an attempt
			}
		}
		return a.config.Node.Attempt(ctx, action.Timeout, Progress{
			Blocked: func(blocked []v1alpha1.BlockedPod) { a.offer(ctx, blocked) }, Evicted: evicted,
		})
	case Operate, Fetch:
		var res Result
		res.Output, res.ExitCode, res.Err = a.config.Hooks.Run(ctx, o.hookID(), o.hookName(),
			"SKERRY_NODE="+a.config.NodeName, "SKERRY_OPERATION="+o.Name, "SKERRY_IMAGE="+o.Spec.Image)
		return res
	case Abort:
		var res Result
		res.Output, res.Err = a.config.Hooks.Kill(ctx, o.hookID())
		return res
	case Do:
		return Result{Work: a.config.Works.Do(ctx, o, func(w Work) {
			r := reported{w, make(chan struct{})}
			select {
			case a.works <- r:
				<-r.kept
			case <-ctx.Done():
			}
		})}
	}
	return Result{}
}

// hookName returns the hook that the operation has begun or begins next.
func (o *Operation) hookName() string {
	if o.Stage == Waiting {
		return PrefetchHook
	}
	return string(o.Spec.Operation)
}

// hookID identifies one run of a hook, also after a restart. The uid is not enough: it is still
// unknown for an operation requested on the device.
func (o *Operation) hookID() string {
	return fmt.Sprintf("%s/%s/%d", o.hookName(), o.Name, o.RequestedAt.UnixNano())
}

// offer puts the newest list into the one slot. Several goroutines of an attempt may do so at once.
func (a *Agent) offer(ctx context.Context, blocked []v1alpha1.BlockedPod) {
	for {
		select {
		case a.progress <- blocked:
			return
		case <-ctx.Done():
			return
		default:
		}
		select {
		case <-a.progress: // an older one makes room
		default:
		}
	}
}
