package beehive

import (
	"context"
	"sync"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
)

// State is where a module is in its life.
type State string

const (
	Stopped    State = "Stopped"    // not started yet, or stopped on request
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

// module is one line of the wiring with its life.
type module struct {
	Entry
	name message.Name

	stop    context.CancelFunc // set before the goroutine starts
	stopped chan struct{}      // closed when the module won't run again
	settled chan struct{}      // closed when the start of the next module need not wait: ready, or failed for the first time
	settle  func()

	mu     sync.Mutex
	health ModuleHealth
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

// ready is called by Port.Ready.
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
