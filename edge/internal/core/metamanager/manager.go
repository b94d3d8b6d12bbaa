package metamanager

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/event"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/lease"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/outbox"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/podrestart"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/putoff"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/token"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/view"
)

// Manager is metamanager.
type Manager struct {
	// Set by New, never changed.
	config   Config
	requests chan *proposal
	renewed  chan struct{} // one slot: a link has come up
	ended    chan struct{} // one slot: a pod waits to run again, or a link has come up
	view     *view.View
	inbox    *inbox
	outbox   *outbox.Outbox // staged and shown by the core
	sender   *outbox.Sender
	lease    *lease.Lease
	counters counters
	putOff   *putoff.Queue
	tokens   *token.Keeper
	events   *event.Buffer // changed by the core

	mu       sync.RWMutex // guards the fields below
	port     port
	restarts []podrestart.Waiting // pods that wait to run again
}

// Name is the module's address on the bus.
func (m *Manager) Name() message.Name { return Name }

// counters count since the start of the process.
type counters struct {
	accepted, refused, malformed, failed atomic.Uint64
	lastAccepted                         atomic.Int64 // unix milliseconds
}

// Linked reports whether there is a session with the cloud.
func (m *Manager) Linked() bool { return m.view.Linked() }

// Version is the newest version that can be seen.
func (m *Manager) Version() uint64 { return m.view.Version() }

// KubeletAlive reports whether the kubelet has renewed its Lease within the Lease's duration.
func (m *Manager) KubeletAlive() bool { return m.lease.Alive(time.Now()) }

func (m *Manager) at(p Point) {
	if m.config.At != nil {
		m.config.At(p)
	}
}

func (m *Manager) showing() showing { return showing{m.config.Corrector, m.config.Gate} }
