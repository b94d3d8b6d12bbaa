package beehive

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
)

// Config holds a Runner's optional settings. The zero value is fit for use.
type Config struct {
	StartTimeout time.Duration // how long a module is waited for before the next one starts; default 30 s
	StopTimeout  time.Duration // how long a module may take to stop; default 10 s
}

// Runner runs the modules of a process.
type Runner struct {
	bus     *bus
	modules []*module // as wired
	failed  chan error
}

// NewRunner checks the wiring.
func NewRunner(config Config, entries []Entry) (*Runner, error) {
	if config.StartTimeout == 0 {
		config.StartTimeout = 30 * time.Second
	}
	if config.StopTimeout == 0 {
		config.StopTimeout = 10 * time.Second
	}
	if err := validate(entries); err != nil {
		return nil, fmt.Errorf("wiring: %w", err)
	}
	r := &Runner{bus: newBus(), failed: make(chan error, len(entries))}
	for _, e := range entries {
		if e.StartTimeout == 0 {
			e.StartTimeout = config.StartTimeout
		}
		if e.StopTimeout == 0 {
			e.StopTimeout = config.StopTimeout
		}
		m := &module{Entry: e, name: e.Module.Name(), stopped: make(chan struct{}), settled: make(chan struct{})}
		r.bus.join(m.name, e.Groups, e.mailbox())
		m.settle = sync.OnceFunc(func() { close(m.settled) })
		m.health = ModuleHealth{Name: m.name, State: Stopped}
		r.modules = append(r.modules, m)
	}
	return r, nil
}

func validate(entries []Entry) error {
	var errs []error
	seen := map[message.Name]bool{}
	for i, e := range entries {
		if e.Module == nil {
			errs = append(errs, fmt.Errorf("entry %d has no module", i))
			continue
		}
		name := e.Module.Name()
		if name == "" {
			errs = append(errs, fmt.Errorf("entry %d: module %T has no name", i, e.Module))
		}
		if seen[name] {
			errs = append(errs, fmt.Errorf("two modules are called %q", name))
		}
		seen[name] = true
		if e.Mailbox < 0 || e.StartTimeout < 0 || e.StopTimeout < 0 {
			errs = append(errs, fmt.Errorf("module %s: a bound below 0", name))
		}
		for j, g := range e.Groups {
			if g == "" || slices.Contains(e.Groups[:j], g) {
				errs = append(errs, fmt.Errorf("module %s: group %q is empty or named twice", name, g))
			}
		}
		if err := e.Restart.validate(); err != nil {
			errs = append(errs, fmt.Errorf("module %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// Run starts the modules in order, each when the one before is ready, has failed, or has used up
// its StartTimeout (it continues to start then, and Health reports that). It serves until ctx ends
// or a module with the policy Never fails. Then it stops them in reverse order, each with the bound
// of its StopTimeout. The error names the modules that failed and those that were stuck; the
// goroutine of a stuck one is the only thing that outlives Run.
func (r *Runner) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	var cause error
	started := 0
	for ; started < len(r.modules) && cause == nil && ctx.Err() == nil; started++ {
		cause = r.start(ctx, r.modules[started])
	}
	if cause == nil {
		logger.V(1).Info("Started modules", "modules", started)
		select {
		case <-ctx.Done():
		case cause = <-r.failed:
		}
	}
	errs := []error{cause}
	for _, m := range r.modules[started:] {
		r.bus.close(m.name) // will never run: its senders get an error
	}
	for _, m := range slices.Backward(r.modules[:started]) {
		errs = append(errs, r.stop(logger, m))
	}
	for {
		select {
		case err := <-r.failed: // while stopping, or together with the first
			errs = append(errs, err)
		default:
			return errors.Join(errs...)
		}
	}
}

// start starts a module and waits until the next may start. It returns the failure, of any module,
// that ends the Runner.
func (r *Runner) start(ctx context.Context, m *module) error {
	// Modules stop one by one and not all at once when ctx ends, so each has a context of its own.
	own, stop := context.WithCancel(context.WithoutCancel(ctx))
	own = klog.NewContext(own, klog.FromContext(ctx).WithValues("module", m.name))
	m.stop = stop
	go func() {
		defer close(m.stopped)
		defer m.settle()
		// The label identifies a stuck or busy module's goroutines in a profile.
		pprof.Do(own, pprof.Labels("module", string(m.name)), func(ctx context.Context) { r.keep(ctx, m) })
	}()
	timeout := time.NewTimer(m.StartTimeout)
	defer timeout.Stop()
	select {
	case <-m.settled:
	case <-timeout.C:
		klog.FromContext(own).Info("Starting the next module: this one is not ready yet", "after", m.StartTimeout)
	case <-ctx.Done():
	case err := <-r.failed:
		return err
	}
	select {
	case err := <-r.failed: // it may have settled by failing
		return err
	default:
		return nil
	}
}

// keep runs a module again and again, by its policy, until ctx ends.
func (r *Runner) keep(ctx context.Context, m *module) {
	logger := klog.FromContext(ctx)
	for failures := 0; ; {
		port := r.bus.begin(m.name, m.ready)
		m.set(Starting, nil)
		err := runOnce(ctx, m.Module, port)
		readyFor := m.readyFor()
		stopping := ctx.Err() != nil
		if err == nil && !stopping {
			err = errEnded
		}
		over := stopping || !m.Restart.onFailure
		r.bus.end(port, over)
		switch {
		case err == nil || stopping && errors.Is(err, context.Canceled):
			m.set(Stopped, nil)
			return
		case over:
			m.set(Failed, err)
			logFailure(logger, err, "Module failed")
			r.failed <- fmt.Errorf("module %s: %w", m.name, err)
			return
		}
		if readyFor >= m.Restart.backoff.Reset {
			failures = 0
		}
		failures++
		wait := m.Restart.backoff.next(failures)
		m.set(BackingOff, err)
		logFailure(logger, err, "Module failed, it starts again after a while", "wait", wait, "failures", failures)
		m.settle()
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
			m.restarted()
		case <-ctx.Done():
			timer.Stop()
			r.bus.close(m.name)
			m.set(Stopped, nil)
			return
		}
	}
}

// stop ends a module and waits for it.
func (r *Runner) stop(logger klog.Logger, m *module) error {
	m.stop()
	timeout := time.NewTimer(m.StopTimeout)
	defer timeout.Stop()
	select {
	case <-m.stopped:
		return nil
	case <-timeout.C:
		// No sender may wait for a module that handles no more messages.
		r.bus.close(m.name)
		logger.Error(nil, "Failed to stop a module in time, ending without it", "module", m.name, "after", m.StopTimeout)
		return fmt.Errorf("module %s did not stop within %v", m.name, m.StopTimeout)
	}
}

var errEnded = errors.New("returned without being stopped")

// panicError is a panic made an error; the stack goes to the log alone.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

func (e *panicError) Unwrap() error {
	err, _ := e.value.(error)
	return err
}

func runOnce(ctx context.Context, m Module, port *Port) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{v, debug.Stack()}
		}
	}()
	// A module's goroutines must end with its run also when it fails.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return m.Run(ctx, port)
}

func logFailure(logger klog.Logger, err error, what string, kv ...any) {
	if p, ok := errors.AsType[*panicError](err); ok {
		kv = append(kv, "stack", string(p.stack))
	}
	logger.Error(err, what, kv...)
}
