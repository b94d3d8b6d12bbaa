package beehive

import (
	"errors"
	"fmt"
)

// Health reports the state of each module, in the order of the wiring.
func (r *Runner) Health() []ModuleHealth {
	all := make([]ModuleHealth, len(r.modules))
	for i, m := range r.modules {
		m.mu.Lock()
		all[i] = m.health
		m.mu.Unlock()
	}
	return all
}

// Metrics is a snapshot of the bus; counters count since the Runner was made.
type Metrics struct {
	Modules []ModuleMetrics
	// Pending is how many callers wait for an answer; LateAnswers counts those that came when no
	// caller waited any more.
	Pending     int
	LateAnswers uint64
}

// Metrics returns a snapshot, with the modules in the order of the wiring.
func (r *Runner) Metrics() Metrics {
	var s Metrics
	for _, m := range r.bus.order {
		s.Modules = append(s.Modules, m.mailbox.metrics())
	}
	r.bus.mu.Lock()
	defer r.bus.mu.Unlock()
	s.Pending, s.LateAnswers = len(r.bus.pending), r.bus.late
	return s
}

// Failure names the modules that have ended for good, each with its last error. It is nil
// before any has.
func (r *Runner) Failure() error {
	var errs []error
	for _, h := range r.Health() {
		if h.State == Failed {
			errs = append(errs, fmt.Errorf("%s: %s", h.Name, h.LastError))
		}
	}
	return errors.Join(errs...)
}
