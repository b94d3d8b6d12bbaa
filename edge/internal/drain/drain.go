// Package drain lets a device reboot, shut down or change its image only when that is safe: its pods have been moved away with respect for every
// PodDisruptionBudget, or the operator has said that it need not be so.
//
// It owns the node's operations and the one drain that they share: requests from the cloud and from the device, the phases, the attempts, our
// cordon. It refuses to go ahead because something is not known: without an API it waits. State and Step are pure; Worker speaks with the API;
// Agent keeps the state in the store before it acts, and asks the hooks.
//
// One goroutine, the loop of Agent.Run, owns the state. At most one action runs beside it, and ends before the next begins. Agent's methods may
// be called from any goroutine; those that change something need a running loop.
package drain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Store keeps the state: what Save was given is on the disk when it returns.
type Store interface {
	Load() ([]byte, error) // nil where nothing was kept
	Save(ctx context.Context, state []byte) error
}

// Node is what the agent does at the API; a *Worker.
type Node interface {
	Check(ctx context.Context) Result
	Cordon(ctx context.Context) Result
	Uncordon(ctx context.Context) Result
	Attempt(ctx context.Context, timeout time.Duration, told func([]v1alpha1.BlockedPod)) Result
}

// Hooks carry the operations out; a *hook.Hooks.
type Hooks interface {
	Check(operation string) error
	Run(ctx context.Context, operation string, env ...string) (output string, code int, err error)
}

// Config is what an Agent needs.
type Config struct {
	NodeName string
	Boot     string // tells one boot of the device from another
	Node     Node
	Hooks    Hooks
	Store    Store
	Rules    Rules
	Events   record.EventRecorder
	// Handover lets others give up what they hold for the network before the first eviction, so that traffic moves first; nil for nobody. It may be
	// repeated.
	Handover func(context.Context) error
}

// DefaultRules are those of the page docs/drain.md.
func DefaultRules() Rules {
	return Rules{Attempts: 5, Interval: 300 * time.Second, Timeout: time.Hour, ProceedAfter: 300 * time.Second, RetryInterval: 5 * time.Second}
}

// Errors that callers branch on.
var (
	ErrExists     = errors.New("there is an operation of this name already")
	ErrNotFound   = errors.New("there is no operation of this name")
	ErrOver       = errors.New("the operation does not wait any more")
	ErrInvalid    = errors.New("the request is not valid")
	ErrFull       = errors.New("too many operations wait")
	errNotRunning = errors.New("the drain agent does not run")
)

// maxOperations bounds those that wait or run; more are refused.
const maxOperations = 64

// Agent carries out the operations of one node.
type Agent struct {
	config   Config
	inbox    chan call
	progress chan []v1alpha1.BlockedPod // one slot, the newest
	duration prometheus.Histogram
	now      func() time.Time

	mu    sync.Mutex
	shown State // a copy for Status
	ended chan struct{}
}

// call is something for the loop to do.
type call struct {
	do   func(*State, *Facts) error
	done chan error // one slot
}

// New makes an Agent. Nothing runs yet.
func New(c Config) *Agent {
	return &Agent{
		config: c, inbox: make(chan call), progress: make(chan []v1alpha1.BlockedPod, 1), now: time.Now,
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "skerry_drain_duration_seconds", Help: "From the request to the end of each drain that was completed, whatever path it took.",
			Buckets: []float64{1, 10, 60, 300, 900, 1800, 3600, 3 * 3600, 12 * 3600, 24 * 3600},
		}),
	}
}

// Describe implements prometheus.Collector.
func (a *Agent) Describe(ch chan<- *prometheus.Desc) { a.duration.Describe(ch) }

// Collect implements prometheus.Collector.
func (a *Agent) Collect(ch chan<- prometheus.Metric) { a.duration.Collect(ch) }

// Status is a copy of the state as it is kept.
func (a *Agent) Status() State {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.shown.clone()
}

// Request asks for an operation. It is on the disk when Request returns nil. A request that is there already, with the same uid, is no error.
func (a *Agent) Request(ctx context.Context, o Operation) error {
	if err := a.valid(&o); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return a.call(ctx, func(s *State, f *Facts) error {
		if have := s.find(o.Name); have != nil {
			if o.UID != "" && have.UID == o.UID {
				have.Spec.Cancel = have.Spec.Cancel || o.Spec.Cancel // nothing else can be changed
				return nil
			}
			if have.holds() {
				return fmt.Errorf("%s: %w", o.Name, ErrExists)
			}
			s.Operations = slices.DeleteFunc(s.Operations, func(x Operation) bool { return x.Name == o.Name })
		}
		held := 0
		for _, x := range s.Operations {
			if x.holds() {
				held++
			}
		}
		if held >= maxOperations {
			return ErrFull
		}
		o.Stage, o.RequestedAt = Waiting, f.Now.UTC()
		s.Operations = append(s.Operations, o)
		return nil
	})
}

func (a *Agent) valid(o *Operation) error {
	if o.Name == "" {
		return errors.New("it has no name")
	}
	if o.Spec.NodeName != "" && o.Spec.NodeName != a.config.NodeName {
		return fmt.Errorf("it is for node %s, this is %s", o.Spec.NodeName, a.config.NodeName)
	}
	o.Spec.NodeName = a.config.NodeName
	switch o.Spec.Operation {
	case v1alpha1.OperationDrain:
	case v1alpha1.OperationReboot, v1alpha1.OperationShutdown, v1alpha1.OperationImageUpdate:
		if err := a.config.Hooks.Check(string(o.Spec.Operation)); err != nil {
			return err
		}
	default:
		return fmt.Errorf("there is no operation %q", o.Spec.Operation)
	}
	if (o.Spec.Operation == v1alpha1.OperationImageUpdate) != (o.Spec.Image != "") {
		return errors.New("an image is needed by ImageUpdate, and means nothing for others")
	}
	if o.Spec.Drain == "" {
		o.Spec.Drain = v1alpha1.DrainRequired
	}
	if o.Spec.WhenUnreachable == "" {
		o.Spec.WhenUnreachable = v1alpha1.UnreachableDefer
	}
	if !slices.Contains([]v1alpha1.DrainPolicy{v1alpha1.DrainRequired, v1alpha1.DrainBestEffort, v1alpha1.DrainSkip}, o.Spec.Drain) {
		return fmt.Errorf("there is no drain policy %q", o.Spec.Drain)
	}
	if !slices.Contains([]v1alpha1.UnreachablePolicy{v1alpha1.UnreachableDefer, v1alpha1.UnreachableProceed}, o.Spec.WhenUnreachable) {
		return fmt.Errorf("there is no %q for an API that can't be reached", o.Spec.WhenUnreachable)
	}
	return nil
}

// Cancel ends an operation that has not gone ahead, and a drain that nobody else wants.
func (a *Agent) Cancel(ctx context.Context, name string) error {
	return a.call(ctx, func(s *State, _ *Facts) error {
		o := s.find(name)
		switch {
		case o == nil:
			return fmt.Errorf("%s: %w", name, ErrNotFound)
		case !o.holds() || o.Stage == Running:
			return fmt.Errorf("%s: %w", name, ErrOver)
		}
		o.Spec.Cancel = true
		return nil
	})
}

// Force ends the drain that an operation waits for: as complete, or as off. The worker stops, and the operation goes ahead.
func (a *Agent) Force(ctx context.Context, name string, off bool) error {
	return a.call(ctx, func(s *State, f *Facts) error {
		o := s.find(name)
		switch {
		case o == nil:
			return fmt.Errorf("%s: %w", name, ErrNotFound)
		case o.Stage != Waiting:
			return fmt.Errorf("%s: %w", name, ErrOver)
		}
		s.Force(off, f.Now)
		return nil
	})
}

// Reachable tells whether the API can be asked: there is a link. Ready tells whether the node is Ready. Both are false until told.
func (a *Agent) Reachable(ctx context.Context, yes bool) error {
	return a.call(ctx, func(_ *State, f *Facts) error { f.Reachable = yes; return nil })
}

// Ready tells whether the node is Ready.
func (a *Agent) Ready(ctx context.Context, yes bool) error {
	return a.call(ctx, func(_ *State, f *Facts) error { f.Ready = yes; return nil })
}

func (a *Agent) call(ctx context.Context, do func(*State, *Facts) error) error {
	a.mu.Lock()
	ended := a.ended
	a.mu.Unlock()
	if ended == nil {
		return errNotRunning
	}
	c := call{do, make(chan error, 1)}
	select {
	case a.inbox <- c:
	case <-ended:
		return errNotRunning
	case <-ctx.Done():
		return fmt.Errorf("asking the drain agent: %w", context.Cause(ctx))
	}
	return <-c.done
}

// task is the action that runs.
type task struct {
	action Action
	cancel context.CancelFunc
	done   chan Result // one slot
}

// Run serves until ctx ends. An action that is under way then is taken up again by the next Run.
func (a *Agent) Run(ctx context.Context) error {
	var state State
	kept, err := a.config.Store.Load()
	if err != nil {
		return fmt.Errorf("reading the operations: %w", err)
	}
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
	l := &loop{agent: a, state: state, kept: kept, facts: Facts{Boot: a.config.Boot}}
	defer l.stop()
	for {
		if err := l.turn(ctx); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// loop is what one Run owns.
type loop struct {
	agent *Agent
	state State
	kept  []byte // the state as it is on the disk
	facts Facts
	task  *task
}

// turn brings the state up to date, keeps it, sees that the right action runs, and waits for something to happen.
func (l *loop) turn(ctx context.Context) error {
	next := l.state.clone()
	l.facts.Now = l.agent.now()
	action := next.Step(l.facts, l.agent.config.Rules)
	if err := l.keep(ctx, next); err != nil {
		return err
	}
	if l.task != nil && (l.task.action.Verb != action.Verb || l.task.action.Operation != action.Operation) {
		l.stop() // not wanted any more, and neither is what came of it
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
	if action.Verb == Wait && !action.Until.IsZero() {
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
	case res := <-done:
		action := l.task.action
		l.task.cancel()
		l.task = nil
		if ctx.Err() != nil {
			return nil // it was ended, and says nothing
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
		if err := l.agent.config.Store.Save(ctx, raw); err != nil {
			return fmt.Errorf("keeping the operations: %w", err)
		}
		l.kept = raw
	}
	before := l.state
	l.state = next
	l.agent.mu.Lock()
	l.agent.shown = next.clone()
	l.agent.mu.Unlock()
	l.agent.tell(ctx, before, next, l.facts.Now)
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
	select { // what an earlier attempt told
	case <-a.progress:
	default:
	}
	go func() { t.done <- a.act(ctx, action, operation) }()
}

func (l *loop) stop() {
	if l.task != nil {
		l.task.cancel()
		<-l.task.done
		l.task = nil
	}
}

// act does one action.
func (a *Agent) act(ctx context.Context, action Action, o Operation) Result {
	switch action.Verb {
	case Check:
		return a.config.Node.Check(ctx)
	case Cordon:
		return a.config.Node.Cordon(ctx)
	case Uncordon:
		return a.config.Node.Uncordon(ctx)
	case Attempt:
		if a.config.Handover != nil {
			if err := a.config.Handover(ctx); err != nil {
				return Result{Err: fmt.Errorf("handing over: %w", err)}
			}
		}
		return a.config.Node.Attempt(ctx, action.Timeout, func(blocked []v1alpha1.BlockedPod) {
			a.offer(ctx, blocked)
		})
	case Operate:
		var res Result
		res.Output, res.ExitCode, res.Err = a.config.Hooks.Run(ctx, string(o.Spec.Operation),
			"SKERRY_NODE="+a.config.NodeName, "SKERRY_OPERATION="+o.Name, "SKERRY_IMAGE="+o.Spec.Image)
		return res
	}
	return Result{}
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

// tell writes what has changed to the log, the events and the metric.
func (a *Agent) tell(ctx context.Context, before, now State, at time.Time) {
	log := klog.FromContext(ctx)
	b, n := before.Drain, now.Drain
	if b.Phase != n.Phase && b.Phase != "" {
		step, warning := stepOf(n.Phase)
		log.Info("The drain has gone on", "nodedrain-step", step, "phase", n.Phase, "attempts", n.Attempts, "message", n.Message)
		a.event(warning, "Drain"+string(n.Phase), n.Message)
		if n.Phase == v1alpha1.DrainComplete && !n.BeganAt.IsZero() {
			a.duration.Observe(at.Sub(n.BeganAt).Seconds())
		}
	}
	if n.Attempting && (!b.Attempting || b.Attempts != n.Attempts) {
		log.Info("An attempt to drain begins", "nodedrain-step", "attempt", "attempt", n.Attempts)
	}
	if b.Attempting && !n.Attempting && n.Phase == v1alpha1.DrainRetrying {
		log.Info("An attempt to drain has failed", "nodedrain-step", "failure", "attempt", n.Attempts, "message", n.Message, "next", n.Next)
		if b.Phase == n.Phase {
			a.event(true, "Drain"+string(n.Phase), n.Message)
		}
	}
	for i := range now.Operations {
		o := &now.Operations[i]
		var was Stage
		if old := before.find(o.Name); old != nil {
			was = old.Stage
		}
		if was != o.Stage {
			log.Info("An operation has gone on", "operation", o.Name, "kind", o.Spec.Operation, "stage", o.Stage, "reason", o.Reason, "message", o.Message)
			a.event(o.Stage == Failed, "Operation"+string(o.Stage), fmt.Sprintf("%s %s %s", o.Spec.Operation, o.Name, o.Message))
		}
	}
}

func stepOf(p v1alpha1.DrainPhase) (step string, warning bool) {
	switch p {
	case v1alpha1.DrainRequested:
		return "request", false
	case v1alpha1.DrainStarting:
		return "starting", false
	case v1alpha1.DrainCordoned:
		return "cordoned", false
	case v1alpha1.DrainFailedCordon:
		return "cordon-failure", true
	case v1alpha1.DrainRetrying:
		return "failure", true
	case v1alpha1.DrainFailed:
		return "giving-up", true
	}
	return "complete", false
}

func (a *Agent) event(warning bool, reason, message string) {
	if a.config.Events == nil {
		return
	}
	kind := corev1.EventTypeNormal
	if warning {
		kind = corev1.EventTypeWarning
	}
	// The uid of a Node in events is its name, as the kubelet has it.
	node := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: a.config.NodeName, UID: types.UID(a.config.NodeName)}
	a.config.Events.Event(node, kind, reason, message)
}
