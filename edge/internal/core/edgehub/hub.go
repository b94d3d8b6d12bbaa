// Package edgehub is the edge's end of the link: it dials the cloud, keeps the link alive, and
// carries messages between the link and the bus.
//
// It owns the choice of the server and the time to dial, the session with the cloud, and the
// requests that wait for the cloud's answer. It keeps no message: one that can't be sent is dropped
// and counted, because its sender keeps the messages that must not be lost. It does not interpret
// the messages. The module is one goroutine that dials and reads, one that takes messages from the
// bus, one that sends heartbeats while a session is open; Status, Describe and Collect may be
// called by any goroutine.
package edgehub

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
)

var (
	_ beehive.Module = (*Hub)(nil)
	_ beehive.Topics = (*Hub)(nil)
)

// Status is the part of `edgecore status` for the link.
type Status struct {
	Linked    bool           `json:"linked"`
	Server    string         `json:"server"` // of the link, or the one dialled last
	Transport link.Transport `json:"transport,omitempty"`
	Instance  string         `json:"instance,omitempty"` // the replica of cloudcore, by its own name
	Version   string         `json:"version,omitempty"`  // of cloudcore
	Epoch     uint64         `json:"epoch,omitempty"`
	// Rescue reports a session for an upgrade of this device alone, which is no link.
	Rescue bool      `json:"rescue,omitempty"`
	Since  time.Time `json:"since,omitzero"` // of the link, or of its loss; zero before the first link
	// LastContact is the time of the cloud's last message or acknowledgement of the transport; zero
	// before the first.
	LastContact time.Time `json:"lastContact,omitzero"`
	LastError   string    `json:"lastError,omitempty"` // why the last try or link ended; "" while linked
	Problem     string    `json:"problem,omitempty"`   // the action needed, if dialling again can't help by itself
	Attempts    int       `json:"attempts"`            // since the last link
	NextTry     time.Time `json:"nextTry,omitzero"`
	// ClockSkew is how far the cloud's clock was ahead of ours at the last welcome.
	ClockSkew time.Duration `json:"clockSkewNanoseconds"`
}

// Hub is the module. It is a prometheus.Collector.
type Hub struct {
	// Set by New, never changed.
	config  Config
	random  func() float64
	metrics *metrics

	floor   uint64 // the highest epoch so far, that this process took or the cloud reported; owned by the goroutine that dials
	dials   sync.WaitGroup
	current atomic.Pointer[session]

	mu     sync.Mutex
	status Status
	logged string // the trouble that was logged last
	when   time.Time
}

// New returns a hub. Run starts it.
func New(config Config) (*Hub, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	return &Hub{config: config.withDefaults(), random: rand.Float64, metrics: newMetrics()}, nil
}

// Name implements beehive.Module.
func (h *Hub) Name() message.Name { return Name }

// Topics implements beehive.Topics: whatever crosses the link, and the wish for a new session.
func (h *Hub) Topics() []message.Key {
	keys := []message.Key{linkstate.Renew.Key()}
	for _, e := range topic.NewTable().Entries() {
		keys = append(keys, e.Key)
	}
	return keys
}
