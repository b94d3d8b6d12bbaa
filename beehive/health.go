package beehive

import (
	"errors"
	"fmt"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
)

// State is where a module is in its life.
type State string

const (
	Stopped    State = "Stopped"    // not started yet, or stopped when told to
	Starting   State = "Starting"   // runs, and is not ready yet
	Ready      State = "Ready"      // runs and receives
	BackingOff State = "BackingOff" // has failed and will start again
	Failed     State = "Failed"     // has failed for good
)

// ModuleHealth is how a module fares.
type ModuleHealth struct {
	Name      message.Name `json:"name"`
	State     State        `json:"state"`
	Since     time.Time    `json:"since,omitzero"` // of the state; zero before the start
	Restarts  int          `json:"restarts"`
	LastError string       `json:"lastError,omitempty"` // of the last failure, kept after a restart
}

// Health tells how each module fares, in the order of the wiring.
func (r *Runner) Health() []ModuleHealth {
	all := make([]ModuleHealth, len(r.modules))
	for i, m := range r.modules {
		m.mu.Lock()
		all[i] = m.health
		m.mu.Unlock()
	}
	return all
}

func (m *module) set(s State, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.health.State = s
	m.health.Since = time.Now()
	if err != nil {
		m.health.LastError = err.Error()
	}
}

// ready is what Port.Ready calls.
func (m *module) ready() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.health.State != Starting {
		return
	}
	m.health.State = Ready
	m.health.Since = time.Now()
	m.settle()
}

// readyFor is how long the module has been ready in this run.
func (m *module) readyFor() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.health.State != Ready {
		return 0
	}
	return time.Since(m.health.Since)
}

func (m *module) restarted() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.health.Restarts++
}

// Metrics is a snapshot of the bus; counters count since the Runner was made.
type Metrics struct {
	Modules []ModuleMetrics
	// Pending is how many callers wait for an answer; LateAnswers counts those that came when nobody waited any more.
	Pending     int
	LateAnswers uint64
}

// ModuleMetrics is a snapshot of one module's mailbox.
type ModuleMetrics struct {
	Name     message.Name
	Depth    int    // messages that wait
	Bound    int    // of Depth
	Waiting  int    // senders held back at this moment
	Sent     uint64 // messages taken into the mailbox
	Received uint64 // messages handed to the module
	HeldBack uint64 // messages whose sender had to wait for room
	Replaced uint64 // messages that a newer one replaced
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

// Failure names the modules that have ended for good, each with its last error. It is nil while none has.
func (r *Runner) Failure() error {
	var errs []error
	for _, h := range r.Health() {
		if h.State == Failed {
			errs = append(errs, fmt.Errorf("%s: %s", h.Name, h.LastError))
		}
	}
	return errors.Join(errs...)
}
