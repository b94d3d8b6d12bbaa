package metamanager

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/view"
)

// inbox queues the messages received over the link for the core: states and results, in order. Its
// bound is the cloud's window of unacknowledged states and our own window of writes. When the disk
// is full, states wait and are retried, and the cloud stops sending; results that find space are
// taken regardless.
type inbox struct {
	wake chan struct{}
	most int // results that are gathered

	mu               sync.Mutex // guards the fields below
	session          uint64     // counts the sessions that this process has seen
	sequence         uint64     // of the last state taken
	states           []stateMessage
	results          []*topicpb.WriteResult
	inventories      []inventoryRequest
	pressing         bool // there are messages other than results of events
	digestMismatches digestMismatches
}

// digestMismatches are the resources for which the cloud expected another digest than that of the
// cached objects. Each is reported once in a session (reported); until the cloud has compared and
// sends its digest again, a set that it marks synced is not (open).
type digestMismatches struct {
	open, reported map[schema.GroupVersionResource]bool
}

func newDigestMismatches() digestMismatches {
	return digestMismatches{open: map[schema.GroupVersionResource]bool{}, reported: map[schema.GroupVersionResource]bool{}}
}

func (s digestMismatches) clone() digestMismatches {
	return digestMismatches{maps.Clone(s.open), maps.Clone(s.reported)}
}

type stateMessage struct {
	message message.Message
	state   *topicpb.State
}

type inventoryRequest struct {
	message message.Message
	request *topicpb.InventoryRequest
}

// delivery is the inbox's content at one moment, or its first part.
type delivery struct {
	session     uint64
	states      []stateMessage
	results     []*topicpb.WriteResult
	inventories []inventoryRequest
	before      digestMismatches
	// part: there was no room for all of it, so optional messages are left for later.
	part bool
}

// waiting returns the whole queue.
func (in *inbox) waiting() delivery {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.pressing = false
	return delivery{session: in.session, states: in.states, results: in.results, inventories: in.inventories, before: in.digestMismatches}
}

// only is the first of the states and of the results.
func (d delivery) only(states, results int) delivery {
	d.states, d.results, d.inventories = d.states[:min(states, len(d.states))], d.results[:min(results, len(d.results))], nil
	d.part = true
	return d
}

// turn moves the first result to the end: one that finds no space must not keep the others from
// being tried. At most one write of an object is in flight, so the order of results has no meaning.
func (in *inbox) turn() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.results) > 1 {
		in.results = append(in.results[1:], in.results[0])
	}
}

func (in *inbox) put(do func()) {
	in.mu.Lock()
	do()
	in.mu.Unlock()
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

func (in *inbox) putState(msg message.Message, s *topicpb.State) {
	in.put(func() { in.states, in.pressing = append(in.states, stateMessage{msg, s}), true })
}

func (in *inbox) putResult(r *topicpb.WriteResult, event bool) {
	in.put(func() { in.results, in.pressing = append(in.results, r), in.pressing || !event })
}

// putInventory: an inventory must include every state received before its request, so it takes the
// same queue.
func (in *inbox) putInventory(msg message.Message, r *topicpb.InventoryRequest) {
	in.put(func() { in.inventories, in.pressing = append(in.inventories, inventoryRequest{msg, r}), true })
}

// reset drops the states of an ended session: they were not acknowledged, so they are sent again.
// Results are kept: they stay valid.
func (in *inbox) reset() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.session++
	in.sequence = 0
	in.states, in.inventories = nil, nil
	in.digestMismatches = newDigestMismatches()
}

func (in *inbox) patient() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return !in.pressing && len(in.results) > 0 && len(in.results) < in.most
}

// concern reports whether the cloud may be mistaken about an interest's objects.
func (s digestMismatches) concern(i *view.Interest) bool {
	for resource := range s.open {
		if i.Brings(resource) {
			return true
		}
	}
	return false
}

// No client waits for the result of an event, and each commit is two syncs of flash: so results of
// events are batched for a moment. Results lost with the process are reported again, since the
// event is sent again and found there. Fewer than the window of events are batched, so that the
// others are in flight.
const (
	gatherFor  = 10 * time.Millisecond
	gatherMost = 16
)
