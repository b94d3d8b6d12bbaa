package meta

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/linkstate"
	"github.com/skerry-io/skerry/edge/internal/meta/lease"
	"github.com/skerry-io/skerry/edge/internal/meta/putoff"
	"github.com/skerry-io/skerry/edge/internal/store"
)

// Manager is metamanager.
type Manager struct {
	// Set by New, never changed.
	config   Config
	requests chan *proposal
	renewed  chan struct{} // one slot: a link has come up
	inbox    *inbox
	sender   *sender
	lease    *lease.Lease
	counters counters
	putOff   *putoff.Queue
	next     atomic.Uint64 // the newest version that was given out, shown or not

	mu        sync.RWMutex // guards what follows; only the core changes it, watchers apart
	running   bool
	port      port
	version   uint64 // the newest that was shown
	base      uint64 // the first of this run: no watch can start before it
	tables    map[schema.GroupVersionResource]*table
	interests map[uint64]*interest
	uses      map[dependency]int // what the pods held refer to
	link      linkstate.Link
	linked    bool
	answers   map[string]answerInfo

	retained map[key]struct{} // pods that stay although the cloud took them back; owned by the core
	outbox   *outbox          // owned by the core, which changes it under mu
	ring     *ring            // owned by the core
}

// proposal is one change on its way through the core.
type proposal struct {
	do   func(*batch) error
	done chan error // one slot
}

// batch is a set of changes that are worked out but not yet shown. Owned by the core.
type batch struct {
	m         *Manager
	version   uint64
	objects   map[schema.GroupVersionResource]map[key]*held
	changes   map[schema.GroupVersionResource][]change
	touched   []schema.GroupVersionResource
	queues    map[target]*queue
	writes    []func(*store.Tx) error
	afters    []func()
	numbered  uint64 // the newest number of an entry that was given out
	interest  uint64 // ... of an interest
	events    eventSums
	dropped   uint64 // events that this batch makes give way
	interests map[uint64]*interest
	retained  map[key]struct{} // nil: as before
}

// Name is the module's address on the bus.
func (m *Manager) Name() message.Name { return Name }

// counters count since the start of the process.
type counters struct {
	accepted, refused, dropped, malformed, failed atomic.Uint64
	lastAccepted                                  atomic.Int64 // unix milliseconds
}

// answerInfo is what is known of a kept answer without opening it.
type answerInfo struct {
	at    int64 // unix milliseconds
	bound types.UID
	fresh bool // asked for by ourselves, and nobody has had it yet
}

// Linked reports whether there is a session with the cloud.
func (m *Manager) Linked() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.linked
}

// Version is the newest version that can be seen.
func (m *Manager) Version() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.version
}

// KubeletAlive reports whether the kubelet has renewed its Lease within the Lease's duration.
func (m *Manager) KubeletAlive() bool { return m.lease.Alive(time.Now()) }

func (m *Manager) at(p Point) {
	if m.config.At != nil {
		m.config.At(p)
	}
}
