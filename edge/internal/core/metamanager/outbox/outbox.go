// Package outbox is the writes that wait for the cloud, and which of them may go.
//
// It owns a queue for each object, in order, of which at most one write is in flight; the windows
// of writes in flight; and the bound of the events, of which the oldest are dropped. It does not
// refuse entries: its user asks how many are pending for an object. It does not write to the disk
// itself: a Batch has the writes for its user's transaction, and becomes visible with Show once
// that is committed.
//
// One goroutine stages and changes; it reads its own changes without a lock. Status, Written and
// Newest may be called by any goroutine.
package outbox

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

// Limits bound the pending entries and those in flight.
type Limits struct {
	Events      int // that wait; the oldest go first and are counted
	EventBytes  int
	Window      int // writes under way
	EventWindow int // of those, at most this many events
}

// Outbox is the writes that wait.
type Outbox struct {
	limits Limits // set by New, never changed

	mu sync.RWMutex // held by readers, and by the changing goroutine to change the following fields
	contents

	sentMu   sync.Mutex        // guards the fields below
	sentOver map[uint64]string // of writes under way, see Sending
}

type contents struct {
	last       uint64 // number of the newest entry
	queues     map[object.Ref]*queue
	refs       map[uint64]object.Ref
	inflight   map[uint64]bool // true: an event
	inEvents   int             // how many of inflight are events
	state      *readySet       // heads that may be sent
	event      *readySet
	eventOrder []uint64 // events by age; may hold some that are gone
	events     eventSums
	dropped    uint64 // dropped events that no event reports yet
	reported   uint64 // those that an event of this process reports
}

// queue has the writes of one object, oldest first: accepted ones, then at most one in flight, then
// pending ones.
type queue struct{ entries []*Entry }

// head is the next write to send; nil without one, or where it stays on the device.
func (q *queue) head() *Entry {
	for _, e := range q.entries {
		if e.Local {
			return nil
		}
		if !e.Accepted {
			return e
		}
	}
	return nil
}

type eventSums struct{ entries, bytes int }

// New returns an empty Outbox.
func New(limits Limits) *Outbox {
	return &Outbox{limits: limits, contents: empty(), sentOver: map[uint64]string{}}
}

func empty() contents {
	return contents{
		queues: map[object.Ref]*queue{}, refs: map[uint64]object.Ref{}, inflight: map[uint64]bool{}, state: newReadySet(), event: newReadySet(),
	}
}

// Stored is the stored state of an outbox.
type Stored struct{ contents }

// Read reads it. event is called for each event that waits, the oldest first; its body is
// the callee's.
func Read(tx *store.Tx, event func(ref object.Ref, body []byte)) (*Stored, error) {
	o := &Stored{empty()}
	var err error
	if o.last, err = tx.Number(store.Entry); err != nil {
		return nil, err
	}
	if o.dropped, err = tx.Number(store.Dropped); err != nil {
		return nil, err
	}
	err = tx.Entries(func(id uint64, r *storepb.Entry) error { // by number
		ref, e := entryOf(id, r)
		q := o.queues[ref]
		if q == nil {
			q = &queue{}
			o.queues[ref] = q
		}
		q.entries = append(q.entries, e)
		o.refs[id], o.last = ref, max(o.last, id)
		if e.event() {
			o.events.entries++
			o.events.bytes += e.Size
			o.eventOrder = append(o.eventOrder, id)
			event(ref, r.Body)
		}
		return nil
	})
	return o, err
}

// Restore replaces the entries by the stored ones. No write is in flight.
func (o *Outbox) Restore(s *Stored) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.contents = s.contents
}

// Entries lists the writes of an object, to look at.
func (o *Outbox) Entries(ref object.Ref) []*Entry {
	if q := o.queues[ref]; q != nil {
		return q.entries
	}
	return nil
}

// Refs lists the objects that writes wait for or were accepted of.
func (o *Outbox) Refs() []object.Ref { return slices.Collect(maps.Keys(o.queues)) }

// Dropped counts the dropped events that no event reports yet.
func (o *Outbox) Dropped() uint64 { return o.dropped }

// under reports whether the entry is under way.
func (o *Outbox) under(id uint64) bool {
	_, under := o.inflight[id]
	return under
}

// noteEvents keeps eventOrder in the order of age: the queues of a batch come in any order.
func (o *Outbox) noteEvents(q *queue) {
	for _, e := range q.entries {
		if !e.event() {
			continue
		}
		if i, found := slices.BinarySearch(o.eventOrder, e.ID); !found {
			o.eventOrder = slices.Insert(o.eventOrder, i, e.ID)
		}
	}
}

// offer puts the head of a queue among those to send, unless one of the queue is under way.
func (o *Outbox) offer(q *queue) {
	if e := q.head(); e != nil && !o.under(e.ID) {
		o.readyOf(e).add(e.ID)
	}
}

func (o *Outbox) readyOf(e *Entry) *readySet {
	if e.event() {
		return o.event
	}
	return o.state
}

// Restart makes all writes in flight pending again: their link is lost.
func (o *Outbox) Restart() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.inflight)
	o.inEvents = 0
	o.sentMu.Lock()
	clear(o.sentOver)
	o.sentMu.Unlock()
	o.state, o.event = newReadySet(), newReadySet()
	for _, q := range o.queues {
		o.offer(q)
	}
}

// Finish allows the next write of the object. Call it after the result of the one with this number
// is on the disk.
func (o *Outbox) Finish(id uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if event, ok := o.inflight[id]; ok {
		delete(o.inflight, id)
		if event {
			o.inEvents--
		}
	}
	o.sentMu.Lock()
	delete(o.sentOver, id)
	o.sentMu.Unlock()
	ref, known := o.refs[id]
	if !known {
		return
	}
	if q := o.queues[ref]; q != nil {
		o.offer(q)
	}
}

// Sending records kube-apiserver's version of the cached object when a write is sent. Call it
// before the write is sent.
func (o *Outbox) Sending(id uint64, held string) {
	o.sentMu.Lock()
	defer o.sentMu.Unlock()
	o.sentOver[id] = held
}

// SentOver returns the version of the cached object when a write in flight was sent; "" if there
// was no object.
func (o *Outbox) SentOver(id uint64) string {
	o.sentMu.Lock()
	defer o.sentMu.Unlock()
	return o.sentOver[id]
}

// Send passes on the entries that may be sent, within the windows.
func (o *Outbox) Send(put func(object.Ref, *Entry)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.inflight) < o.limits.Window {
		ref, e := o.next(o.state)
		if e == nil {
			break
		}
		o.inflight[e.ID] = false
		e.sent = true
		put(ref, e)
	}
	for len(o.inflight) < o.limits.Window && o.inEvents < o.limits.EventWindow {
		ref, e := o.next(o.event)
		if e == nil {
			break
		}
		o.inflight[e.ID] = true
		o.inEvents++
		e.sent = true
		put(ref, e)
	}
}

// next takes the oldest entry that may be sent; nil without one.
func (o *Outbox) next(r *readySet) (object.Ref, *Entry) {
	id, ok := r.take()
	if !ok {
		return object.Ref{}, nil
	}
	ref := o.refs[id]
	return ref, o.queues[ref].head()
}

// Newest is the greatest of kube-apiserver's versions of accepted writes of an object that have not
// been delivered yet; 0 without one.
func (o *Outbox) Newest(ref object.Ref) (newest uint64) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if q := o.queues[ref]; q != nil {
		for _, e := range q.entries {
			newest = max(newest, object.Number(e.AcceptedVersion))
		}
	}
	return newest
}

// Written is, by resource, the greatest of kube-apiserver's versions of accepted writes that have
// not been delivered yet; the greatest number if the version of one is unknown.
func (o *Outbox) Written() map[schema.GroupVersionResource]uint64 {
	o.mu.RLock()
	defer o.mu.RUnlock()
	out := map[schema.GroupVersionResource]uint64{}
	for ref, q := range o.queues {
		for _, e := range q.entries {
			if e.Accepted {
				out[ref.Resource] = max(out[ref.Resource], cmp.Or(object.Number(e.AcceptedVersion), math.MaxUint64))
			}
		}
	}
	return out
}

// Status reports the entries pending for the cloud.
type Status struct {
	Waiting    map[string]int `json:"waiting"` // by class
	EventBytes int            `json:"eventBytes"`
	InFlight   int            `json:"inFlight"`
	Oldest     *time.Time     `json:"oldest,omitempty"` // by the clock of its time
	Dropped    uint64         `json:"dropped"`          // dropped events not yet reported to the cloud
	// Reported is how many dropped events were reported to the cloud since edgecore started.
	Reported uint64 `json:"droppedReported,omitempty"`
}

// Backlog counts the writes that wait, and returns the age of the oldest by now's clock: 0 where
// that clock was set back.
func (o *Outbox) Backlog(now time.Time) (count int, age time.Duration) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	oldest := now.UnixMilli()
	for _, q := range o.queues {
		for _, e := range q.entries {
			if !e.Accepted && !e.Local {
				count++
				oldest = min(oldest, e.At)
			}
		}
	}
	return count, now.Sub(time.UnixMilli(oldest)).Truncate(time.Second)
}

// Status counts the pending entries.
func (o *Outbox) Status() Status {
	o.mu.RLock()
	defer o.mu.RUnlock()
	s := Status{Waiting: map[string]int{}, EventBytes: o.events.bytes, InFlight: len(o.inflight), Dropped: o.dropped, Reported: o.reported}
	oldest := int64(0)
	waiting := map[storepb.Class]int{} // not by name: there may be thousands, and the goroutine that changes the outbox waits in the meantime
	for _, q := range o.queues {
		for _, e := range q.entries {
			if e.Accepted || e.Local {
				continue
			}
			waiting[e.Class]++
			if oldest == 0 || e.At < oldest {
				oldest = e.At
			}
		}
	}
	for class, n := range waiting {
		s.Waiting[class.String()] = n
	}
	if oldest > 0 {
		at := time.UnixMilli(oldest)
		s.Oldest = &at
	}
	return s
}
