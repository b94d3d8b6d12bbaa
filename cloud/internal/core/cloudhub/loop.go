package cloudhub

import (
	"context"
	"sync"
)

// Loop is a session's occasional work. Each Signal has step called once more, one call at a time,
// in a goroutine that ends when there is no work left: a session that waits costs no stack.
// Thousands of sessions wait, and a goroutine keeps the stack of its deepest call for as long as it
// waits with more than a quarter of it in use.
//
// An error or a panic of step fails the session, and step is not called again. A Loop's methods may
// be called by any goroutine, Signal also before Start and after Stop.
type Loop struct {
	step  func(ctx context.Context) error
	steps sync.WaitGroup // Add only with mu held and before over is set

	mu      sync.Mutex
	ctx     context.Context // nil before Start
	fail    func(error)
	due     bool
	running bool
	over    bool
}

// NewLoop returns a Loop. It calls step from Start on.
func NewLoop(step func(ctx context.Context) error) *Loop { return &Loop{step: step} }

// Start lets step be called, with ctx, until that ends. fail receives the error of step, or of its
// panic; it must not call Stop.
func (l *Loop) Start(ctx context.Context, fail func(error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ctx, l.fail = ctx, fail
	l.begin()
}

// Signal has step called, after the call that may be under way.
func (l *Loop) Signal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.due = true
	l.begin()
}

// Stop waits until step has returned. It is not called again then. step must not call it.
func (l *Loop) Stop() {
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	l.steps.Wait()
}

// begin starts the goroutine where one is needed. mu is held.
func (l *Loop) begin() {
	if l.due && !l.running && !l.over && l.ctx != nil {
		l.running = true
		l.steps.Go(l.run)
	}
}

func (l *Loop) run() {
	for l.next() {
		if err := guard(l.ctx, func() error { return l.step(l.ctx) }); err != nil {
			l.mu.Lock()
			l.over = true
			l.mu.Unlock()
			l.fail(err)
			return
		}
	}
}

// next reports whether step is to be called; otherwise no goroutine runs any more.
func (l *Loop) next() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = l.due && !l.over && l.ctx.Err() == nil
	l.due = false
	return l.running
}

// Serve runs a service alone, without a session, until ctx ends or the service fails. It
// returns the failure.
func Serve(ctx context.Context, s Service) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	failed := make(chan error, 1)
	s.Start(ctx, func(err error) {
		select {
		case failed <- err:
			cancel(err)
		default: // the first one counts
		}
	})
	<-ctx.Done()
	s.Stop()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}
