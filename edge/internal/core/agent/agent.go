// Package agent is the framework of the device's agents: modules that keep a part of the device in
// the state that objects in the store desire.
//
// It owns the common parts of agents: typed watches of the edge API that report when they are
// synced (Watch), the state of the link (Run.Link), repeated reports to the cloud (Reports), events
// about the node (Run.Event), persistent state in the store (Memory), the state that `edgecore
// status` shows (Module.State), and the loop that calls the agent again. It refuses to call an
// agent before its watches have synced: missing knowledge is no reason to act. The desired state
// and the way to it belong to the agent: a pure function from objects to changes, and a driver.
//
// How it works: Config.Start is called at the start of each run; it opens watches and returns a
// Sync. One goroutine calls that Sync whenever something changed, when the time that the last call
// asked for has passed, and after a failure with a growing delay. Events are not queued: a change
// sets a flag, and Sync reads the present state. A Sync's own fields need no lock. Module.State,
// Module.Repeat, Run.Wake, Run.Link and Run.Event may be called by any goroutine.
package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/recovery"
	"github.com/skerry-io/skerry/common/rerun"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
)

// Config configures an agent. A zero duration means the default given here.
type Config struct {
	Name     message.Name
	NodeName string
	// API is the edge API. Reporter takes reports for the cloud; nil for an agent without reports.
	API      *rest.Config
	Reporter Reporter
	// Events opens the recorder of events for one run; nil for an agent without events.
	Events func(ctx context.Context) (Recorder, error)
	// Start opens the watches of one run and returns its Sync. Whatever Start returns with it ends
	// with ctx.
	Start func(ctx context.Context, r *Run) (Sync, error)

	// ReadyAfter is how long the modules after this one wait for its first Sync; 0: they don't.
	ReadyAfter time.Duration
	// Resync is how often Sync is called without a change; 0: never.
	Resync time.Duration
	// RetryMin and RetryMax bound the delay after a failure; 1 s and 30 s.
	RetryMin, RetryMax time.Duration
}

func (c *Config) defaults() {
	or := func(d *time.Duration, standard time.Duration) {
		if *d == 0 {
			*d = standard
		}
	}
	or(&c.RetryMin, time.Second)
	or(&c.RetryMax, 30*time.Second)
}

// State is an agent as `edgecore status` shows it.
type State struct {
	Name string `json:"name"`
	// Waiting names the missing information without which the agent does not act; "" if it works.
	Waiting string `json:"waiting,omitempty"`
	// Problem is the error of the last Sync; "" if it succeeded.
	Problem string `json:"problem,omitempty"`
	// Note is the agent's description of its work (Run.Note).
	Note     string    `json:"note,omitempty"`
	Syncs    uint64    `json:"syncs"`
	Failures uint64    `json:"failures"`
	LastSync time.Time `json:"lastSync,omitzero"`
	// Unreported is how many entries are not in the outbox yet.
	Unreported int `json:"unreported,omitempty"`
}

// Module is an agent on the bus.
type Module struct {
	config Config

	mu    sync.Mutex
	state State
	run   *Run // the present one; nil without one
	// repeats counts calls of Repeat, heard those that a run has handled: a starting run handles
	// earlier ones.
	repeats, heard int
}

// New makes the Module of an agent.
func New(config Config) *Module {
	config.defaults()
	return &Module{config: config, state: State{Name: string(config.Name), Waiting: "the module has not started"}}
}

// Name implements beehive.Module.
func (m *Module) Name() message.Name { return m.config.Name }

// Topics implements beehive.Topics.
func (*Module) Topics() []message.Key { return []message.Key{linkstate.Current.Key()} }

// State is the present state, for any goroutine.
func (m *Module) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// Repeat reports every entry again: the cloud has lost them. Without a run, the next one reports
// its entries.
func (m *Module) Repeat() {
	m.mu.Lock()
	r := m.run
	m.repeats++
	m.mu.Unlock()
	if r != nil {
		r.repeat(m)
		r.Wake()
	}
}

// Repeated reports whether the cloud has lost the reports since the last call. It is for agents
// that drop finally reported entries.
func (r *Run) Repeated() bool { return r.forgotten.Swap(false) }

func (r *Run) repeat(m *Module) {
	m.mu.Lock()
	again := m.heard != m.repeats
	m.heard = m.repeats
	m.mu.Unlock()
	if again {
		r.forgotten.Store(true)
		r.Reports.Repeat()
	}
}

func (m *Module) note(change func(*State)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.state)
}

// Run implements beehive.Module.
func (m *Module) Run(ctx context.Context, port *beehive.Port) error {
	r := &Run{
		name: m.config.Name, node: m.config.NodeName, api: m.config.API, port: port,
		Reports: newReports(m.config.Reporter),
		note:    func(text string) { m.note(func(s *State) { s.Note = text }) },
	}
	r.loop = rerun.New(func(ctx context.Context) (time.Duration, error) { return m.once(ctx, r) },
		rerun.Config{RetryMin: m.config.RetryMin, RetryMax: m.config.RetryMax})
	if err := r.takeRetained(ctx); err != nil {
		return err
	}
	m.begin(r)
	defer m.begin(nil)
	r.repeat(m) // requested before the run
	if m.config.Events != nil {
		recorder, err := m.config.Events(ctx)
		if err != nil {
			return fmt.Errorf("opening the recorder of events: %w", err)
		}
		defer closeRecorder(ctx, recorder)
		r.recorder = recorder
	}
	defer func() {
		for _, f := range slices.Backward(r.cleanups) {
			f()
		}
	}()
	g, ctx := errgroup.WithContext(ctx)
	// A panic in one of its goroutines fails the module, as one in Run does, and not the process.
	r.Go = func(f func(ctx context.Context) error) {
		g.Go(func() error { return recovery.Do(ctx, string(m.config.Name), func() error { return f(ctx) }) })
	}
	var err error
	if r.sync, err = m.config.Start(ctx, r); err != nil {
		g.Go(func() error { return err }) // ends the goroutines of Start
		return g.Wait()
	}
	for _, w := range r.watches {
		r.Go(w.run)
	}
	r.Go(r.receive)
	g.Go(func() error {
		if m.config.ReadyAfter == 0 {
			port.Ready()
		} else {
			late := time.AfterFunc(m.config.ReadyAfter, port.Ready)
			defer late.Stop()
		}
		r.loop.Run(ctx)
		return nil
	})
	return g.Wait()
}

func (m *Module) begin(r *Run) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.run = r
}

// once calls the agent's Sync, if no information is missing.
func (m *Module) once(ctx context.Context, r *Run) (again time.Duration, err error) {
	if waiting := r.missing(); waiting != "" {
		m.note(func(s *State) { s.Waiting = waiting })
		return 0, nil // a watch that syncs wakes the loop
	}
	err = recovery.Do(ctx, string(m.config.Name), func() (err error) {
		again, err = r.sync(ctx)
		return err
	})
	if ctx.Err() != nil {
		return 0, nil
	}
	err = errors.Join(err, r.Reports.flush(ctx))
	m.noteSync(ctx, r, err)
	r.port.Ready()
	return shorter(shorter(m.config.Resync, again), r.Reports.again(err)), err
}

// shorter returns the shorter of two waits; 0 means no wait.
func shorter(a, b time.Duration) time.Duration {
	if a <= 0 || b > 0 && b < a {
		return b
	}
	return a
}

func (m *Module) noteSync(ctx context.Context, r *Run, err error) {
	var before string
	m.note(func(s *State) {
		before = s.Problem
		s.Waiting, s.Problem = "", ""
		s.Syncs++
		s.LastSync = time.Now()
		s.Unreported = r.Reports.unsent()
		if err != nil {
			s.Problem = err.Error()
			s.Failures++
		}
	})
	if err != nil && err.Error() != before {
		klog.FromContext(ctx).Error(err, "Failed to reconcile the device, retrying", "agent", m.config.Name)
	}
}
