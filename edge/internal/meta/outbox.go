package meta

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/object"
	"github.com/skerry-io/skerry/edge/internal/store"
	"github.com/skerry-io/skerry/edge/internal/store/storepb"
)

// target is what a write changes: writes of one target go up in order, those of different targets don't wait for each other.
type target struct {
	resource schema.GroupVersionResource
	key
}

func targetOf(ref object.Ref) target { return target{ref.Resource, key{ref.Namespace, ref.Name}} }

func (t target) ref() object.Ref {
	return object.Ref{Resource: t.resource, Namespace: t.namespace, Name: t.name}
}

// entry is one write that waits. The body of an event is on the disk alone. But for sent, it is never changed, only replaced.
type entry struct {
	id              uint64
	class           storepb.Class
	verb            topicpb.Verb
	subresource     string
	patchType       types.PatchType
	body            []byte
	uid             types.UID
	at              int64 // unix milliseconds
	shownVersion    uint64
	accepted        bool // the cloud has it; kept until the object comes down as it was then or newer
	acceptedVersion string
	acceptedEpoch   uint64 // of the session; 0 after a restart
	size            int

	// volatile: never on the disk. A kubelet says every few minutes that nothing has changed: that is not worth a write to flash.
	volatile bool
	sent     bool // may have reached the cloud: a create can't be merged into any more without saying so
}

func (e *entry) event() bool { return e.class == storepb.Class_EVENT }

// laid reports whether the write is laid over the object that the cloud delivered. What it says of its node, an agent adds to the object in the
// cloud.
func (e *entry) laid() bool { return e.class != storepb.Class_EVENT && e.class != storepb.Class_REPORT }

// queue is the writes of one target, oldest first: first those accepted, then at most one under way, then those that wait.
type queue struct{ entries []*entry }

// head is the next write to send.
func (q *queue) head() *entry {
	for _, e := range q.entries {
		if !e.accepted {
			return e
		}
	}
	return nil
}

type eventSums struct{ entries, bytes int }

// outbox is the writes that wait. Owned by the core; changed in show and by sending.
type outbox struct {
	last         uint64 // number of the newest entry
	lastInterest uint64 // ... and of the newest interest, which is numbered the same way
	queues       map[target]*queue
	targets      map[uint64]target
	inflight     map[uint64]bool // true: an event
	inEvents     int             // how many of inflight are events
	state        *ready          // heads that may be sent
	event        *ready
	eventOrder   []uint64 // events by age; may hold some that are gone
	events       eventSums
	dropped      uint64 // events that had to make room and that nobody was told of
}

func newOutbox() *outbox {
	return &outbox{
		queues: map[target]*queue{}, targets: map[uint64]target{}, inflight: map[uint64]bool{}, state: newReady(), event: newReady(),
	}
}

// queue is the queue of a target as this batch leaves it; the batch's own to change.
func (b *batch) queue(t target) *queue {
	if q, ok := b.queues[t]; ok {
		return q
	}
	q := &queue{}
	if have := b.m.outbox.queues[t]; have != nil {
		q.entries = slices.Clone(have.entries)
	}
	b.queues[t] = q
	return q
}

// pending is the writes of a target, to look at.
func (b *batch) pending(t target) []*entry {
	if q, ok := b.queues[t]; ok {
		return q.entries
	}
	if q := b.m.outbox.queues[t]; q != nil {
		return q.entries
	}
	return nil
}

// add appends an entry and gives it its number.
func (b *batch) add(t target, e *entry) {
	b.numbered++
	e.id = b.numbered
	q := b.queue(t)
	q.entries = append(q.entries, e)
	b.saveEntry(t, e)
	if e.event() {
		b.events.entries++
		b.events.bytes += e.size
	}
}

// replace puts e in the place of the entry with its number.
func (b *batch) replace(t target, e *entry) {
	q := b.queue(t)
	i := slices.IndexFunc(q.entries, func(o *entry) bool { return o.id == e.id })
	if e.event() {
		b.events.bytes += e.size - q.entries[i].size
	}
	q.entries[i] = e
	b.saveEntry(t, e)
}

// merge puts merged, which says all that last says, in the place of last. What may have been sent is
// replaced by an entry with a new number: a result that is on its way is of what was sent, and must
// not take with it what came after.
func (b *batch) merge(t target, last, merged *entry) {
	if !last.sent {
		merged.id = last.id
		b.replace(t, merged)
		return
	}
	merged.sent = false
	b.remove(t, func(e *entry) bool { return e.id == last.id })
	b.add(t, merged)
}

// remove takes the entries out of which the function says so.
func (b *batch) remove(t target, which func(*entry) bool) (removed int) {
	if !slices.ContainsFunc(b.pending(t), which) {
		return 0
	}
	q := b.queue(t)
	q.entries = slices.DeleteFunc(q.entries, func(e *entry) bool {
		if !which(e) {
			return false
		}
		removed++
		if !e.volatile {
			b.save(func(tx *store.Tx) error { return tx.DeleteEntry(e.id) })
		}
		if e.event() {
			b.events.entries--
			b.events.bytes -= e.size
		}
		return true
	})
	return removed
}

func (b *batch) saveEntry(t target, e *entry) {
	if e.volatile {
		return
	}
	record := &storepb.Entry{
		Class: e.class, Verb: uint32(e.verb), Group: t.resource.Group, Version: t.resource.Version, Resource: t.resource.Resource,
		Namespace: t.namespace, Name: t.name, Subresource: e.subresource, PatchType: string(e.patchType), Body: e.body, Uid: string(e.uid),
		UnixMillis: e.at, ShownVersion: e.shownVersion, Accepted: e.accepted, AcceptedVersion: e.acceptedVersion,
	}
	id := e.id
	if e.event() {
		e.body = nil // from here on it is on the disk alone
	}
	b.save(func(tx *store.Tx) error { return tx.PutEntry(id, record) })
}

func entryOf(id uint64, r *storepb.Entry) (target, *entry) {
	t := target{
		schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Resource}, key{r.Namespace, r.Name},
	}
	e := &entry{
		id: id, class: r.Class, verb: topicpb.Verb(r.Verb), subresource: r.Subresource, patchType: types.PatchType(r.PatchType), uid: types.UID(r.Uid),
		at: r.UnixMillis, shownVersion: r.ShownVersion, accepted: r.Accepted, acceptedVersion: r.AcceptedVersion, size: len(r.Body), sent: true,
	}
	if !e.event() {
		e.body = r.Body
	}
	return t, e
}

// show takes over what the batch staged.
func (o *outbox) show(b *batch) {
	o.last, o.lastInterest, o.events = b.numbered, b.interest, b.events
	for t, q := range b.queues {
		if old := o.queues[t]; old != nil {
			for _, e := range old.entries {
				delete(o.targets, e.id)
				o.readyOf(e).drop(e.id)
			}
		}
		if len(q.entries) == 0 {
			delete(o.queues, t)
			continue
		}
		o.queues[t] = q
		for _, e := range q.entries {
			o.targets[e.id] = t
		}
		o.noteEvents(q)
		o.offer(q)
	}
	if len(o.eventOrder) > 64 && len(o.eventOrder) > 2*o.events.entries {
		o.eventOrder = slices.DeleteFunc(o.eventOrder, func(id uint64) bool { _, ok := o.targets[id]; return !ok })
	}
}

// noteEvents keeps eventOrder in the order of age: the queues of a batch come in any order.
func (o *outbox) noteEvents(q *queue) {
	for _, e := range q.entries {
		if !e.event() {
			continue
		}
		if i, found := slices.BinarySearch(o.eventOrder, e.id); !found {
			o.eventOrder = slices.Insert(o.eventOrder, i, e.id)
		}
	}
}

// offer puts the head of a queue among those to send, unless one of the queue is under way.
func (o *outbox) offer(q *queue) {
	e := q.head()
	if e == nil {
		return
	}
	if _, under := o.inflight[e.id]; under {
		return
	}
	o.readyOf(e).put(e.id)
}

func (o *outbox) readyOf(e *entry) *ready {
	if e.event() {
		return o.event
	}
	return o.state
}

// restart makes all that was under way wait again: the link that it was on is gone.
func (o *outbox) restart() {
	clear(o.inflight)
	o.inEvents = 0
	o.state, o.event = newReady(), newReady()
	for _, q := range o.queues {
		o.offer(q)
	}
}

// ended says that the entry is no longer under way.
func (o *outbox) ended(id uint64) {
	if event, ok := o.inflight[id]; ok {
		delete(o.inflight, id)
		if event {
			o.inEvents--
		}
	}
}

// next takes the oldest of those that may be sent; nil where there is none.
func (o *outbox) next(r *ready) (target, *entry) {
	id, ok := r.take()
	if !ok {
		return target{}, nil
	}
	t := o.targets[id]
	return t, o.queues[t].head()
}

// pump hands to the sender what may go. Called by the core after each batch.
func (m *Manager) pump() {
	if !m.linked {
		return
	}
	m.mu.Lock() // Status looks at the outbox
	defer m.mu.Unlock()
	o, limits := m.outbox, m.config.Limits
	for len(o.inflight) < limits.Window {
		t, e := o.next(o.state)
		if e == nil {
			break
		}
		o.inflight[e.id] = false
		e.sent = true
		m.sender.putWrite(t, e)
	}
	for len(o.inflight) < limits.Window && o.inEvents < limits.EventWindow {
		t, e := o.next(o.event)
		if e == nil {
			break
		}
		o.inflight[e.id] = true
		o.inEvents++
		e.sent = true
		m.sender.putWrite(t, e)
	}
}
