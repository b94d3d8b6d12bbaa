package outbox

import (
	"bytes"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// Batch is a set of changes that are worked out and not yet on the disk. It works on copies:
// one that is dropped leaves no trace. It may be used until the next change of its Outbox,
// by one goroutine.
type Batch struct {
	o       *Outbox
	queues  map[object.Ref]*queue
	writes  []func(*store.Tx) error
	last    uint64 // the newest number of an entry that was given out
	events  eventSums
	dropped uint64
	taken   uint64 // of the dropped ones, by TakeDropped
}

// Stage begins a batch.
func (o *Outbox) Stage() *Batch {
	return &Batch{o: o, queues: map[object.Ref]*queue{}, last: o.last, events: o.events, dropped: o.dropped}
}

// Writes reports whether there are writes for the disk.
func (b *Batch) Writes() bool { return len(b.writes) > 0 || b.dropped != b.o.dropped }

// Write writes the batch's changes.
func (b *Batch) Write(tx *store.Tx) error {
	for _, w := range b.writes {
		if err := w(tx); err != nil {
			return err
		}
	}
	if b.dropped != b.o.dropped {
		if err := tx.SetNumber(store.Dropped, b.dropped); err != nil {
			return err
		}
	}
	if b.last == b.o.last {
		return nil
	}
	return tx.SetNumber(store.Entry, b.last)
}

// Show makes the batch's changes visible.
func (o *Outbox) Show(b *Batch) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last, o.events, o.dropped = b.last, b.events, b.dropped
	o.reported += b.taken
	for ref, q := range b.queues {
		if old := o.queues[ref]; old != nil {
			for _, e := range old.entries {
				delete(o.refs, e.ID)
				o.readyOf(e).drop(e.ID)
			}
		}
		if len(q.entries) == 0 {
			delete(o.queues, ref)
			continue
		}
		o.queues[ref] = q
		for _, e := range q.entries {
			o.refs[e.ID] = ref
		}
		o.noteEvents(q)
		o.offer(q)
	}
	if len(o.eventOrder) > 64 && len(o.eventOrder) > 2*o.events.entries {
		o.eventOrder = slices.DeleteFunc(o.eventOrder, func(id uint64) bool { _, ok := o.refs[id]; return !ok })
	}
}

// queue is the queue of an object as this batch leaves it; the batch's own to change.
func (b *Batch) queue(ref object.Ref) *queue {
	if q, ok := b.queues[ref]; ok {
		return q
	}
	q := &queue{entries: slices.Clone(b.o.Entries(ref))}
	b.queues[ref] = q
	return q
}

// Pending is the writes of an object as this batch leaves them, to look at.
func (b *Batch) Pending(ref object.Ref) []*Entry {
	if q, ok := b.queues[ref]; ok {
		return q.entries
	}
	return b.o.Entries(ref)
}

// Waiting finds the entry that a result is of; nil where it is gone or has been accepted: the link
// was renewed in between.
func (b *Batch) Waiting(id uint64) (object.Ref, *Entry) {
	ref, ok := b.o.refs[id]
	if !ok {
		return object.Ref{}, nil
	}
	pending := b.Pending(ref)
	if i := slices.IndexFunc(pending, func(o *Entry) bool { return o.ID == id && !o.Accepted }); i >= 0 {
		return ref, pending[i]
	}
	return ref, nil
}

// Add appends an entry and gives it its number.
func (b *Batch) Add(ref object.Ref, e *Entry) {
	b.last++
	e.ID = b.last
	q := b.queue(ref)
	q.entries = append(q.entries, e)
	b.save(ref, e)
	if e.event() {
		b.events.entries++
		b.events.bytes += e.Size
	}
}

// Accept replaces an entry by the record that the cloud has accepted it, kept until the object is
// delivered.
func (b *Batch) Accept(ref object.Ref, e *Entry, version string, epoch uint64) {
	next := *e
	next.Accepted, next.AcceptedVersion, next.AcceptedEpoch = true, version, epoch
	b.replace(ref, &next)
}

// Overtake drops the writes of the object that were accepted before e as of a newer version than e
// is: they are of a cluster that has gone back in time since, and would outlast e. It reports
// whether there were any.
func (b *Batch) Overtake(ref object.Ref, e *Entry, version string) bool {
	at := object.Number(version)
	return at != 0 && b.Remove(ref, func(o *Entry) bool { return o.Accepted && o.ID < e.ID && object.Number(o.AcceptedVersion) > at }) > 0
}

// replace puts e in the place of the entry with its number.
func (b *Batch) replace(ref object.Ref, e *Entry) {
	q := b.queue(ref)
	i := slices.IndexFunc(q.entries, func(o *Entry) bool { return o.ID == e.ID })
	if e.event() {
		b.events.bytes += e.Size - q.entries[i].Size
	}
	q.entries[i] = e
	b.save(ref, e)
}

// Merge replaces last by merged, which includes last's changes. An entry that may have been sent is
// replaced by one with a new number: a result in transit belongs to the sent entry, and must not
// remove the later changes.
func (b *Batch) Merge(ref object.Ref, last, merged *Entry) {
	if !last.sent {
		merged.ID = last.ID
		b.replace(ref, merged)
		return
	}
	merged.sent = false
	b.Remove(ref, func(e *Entry) bool { return e.ID == last.ID })
	b.Add(ref, merged)
}

// Locals lists the objects of which a write stays on the device.
func (b *Batch) Locals() (refs []object.Ref) {
	for ref := range b.o.queues {
		if slices.ContainsFunc(b.Pending(ref), func(e *Entry) bool { return e.Local }) {
			refs = append(refs, ref)
		}
	}
	return refs
}

// Release releases the withheld writes of an object.
func (b *Batch) Release(ref object.Ref) {
	for _, e := range slices.Clone(b.Pending(ref)) {
		if e.Local {
			next := *e
			next.Local = false
			b.replace(ref, &next)
		}
	}
}

// Remove removes the entries for which the function returns true.
func (b *Batch) Remove(ref object.Ref, which func(*Entry) bool) (removed int) {
	if !slices.ContainsFunc(b.Pending(ref), which) {
		return 0
	}
	q := b.queue(ref)
	q.entries = slices.DeleteFunc(q.entries, func(e *Entry) bool {
		if !which(e) {
			return false
		}
		removed++
		if !e.Volatile {
			b.writes = append(b.writes, func(tx *store.Tx) error { return tx.DeleteEntry(e.ID) })
		}
		if e.event() {
			b.events.entries--
			b.events.bytes -= e.Size
		}
		return true
	})
	return removed
}

func (b *Batch) save(ref object.Ref, e *Entry) {
	if e.Volatile {
		return
	}
	record, id := e.record(ref), e.ID
	if e.event() {
		e.Body = nil // from here on it is on the disk alone
	}
	b.writes = append(b.writes, func(tx *store.Tx) error { return tx.PutEntry(id, record) })
}

// PutEvent stages an event. A pending entry absorbs the repeat; if the entry may have reached the
// cloud already, its verb becomes an update of the existing Event. Over the limit the oldest are
// dropped.
func (b *Batch) PutEvent(ref object.Ref, e *Entry) {
	if entries := b.Pending(ref); len(entries) > 0 {
		last := entries[len(entries)-1]
		if !b.o.under(last.ID) {
			merged := *last
			merged.Body, merged.Size, merged.At, merged.UID = e.Body, e.Size, e.At, e.UID
			if last.sent {
				merged.Verb = topicpb.Verb_PATCH
			}
			b.Merge(ref, last, &merged)
			b.trimEvents(merged.ID)
			return
		}
		e.Verb = topicpb.Verb_PATCH
	}
	b.Add(ref, e)
	b.trimEvents(e.ID)
}

// trimEvents drops the oldest events when there are too many, and counts them. One that is under
// way stays: it may be there already.
func (b *Batch) trimEvents(newest uint64) {
	for _, id := range b.o.eventOrder {
		if b.events.entries <= b.o.limits.Events && b.events.bytes <= b.o.limits.EventBytes {
			return
		}
		if ref, ok := b.o.refs[id]; ok && !b.o.under(id) && id != newest {
			b.dropped += uint64(b.Remove(ref, func(e *Entry) bool { return e.ID == id }))
		}
	}
}

// TakeDropped returns how many events have had to make room and counts from zero, once half of the
// room is free; before, it returns 0: the event that reports it must not push out another, and in a
// storm that lasts there is one now and then, not each time.
func (b *Batch) TakeDropped() uint64 {
	limits := b.o.limits
	if b.events.entries > limits.Events/2 || b.events.bytes > limits.EventBytes/2 {
		return 0
	}
	n := b.dropped
	b.dropped = 0
	b.taken += n
	return n
}

// PutReport stages an agent's report on an object. It replaces a pending earlier report.
func (b *Batch) PutReport(ref object.Ref, e *Entry) {
	var last *Entry
	for _, o := range b.Pending(ref) {
		if o.Class == e.Class {
			last = o
		}
	}
	switch {
	case last == nil:
		b.Add(ref, e)
	case last.UID == e.UID && bytes.Equal(last.Body, e.Body): // on its way already
	case b.o.under(last.ID):
		b.Add(ref, e)
	default:
		b.Merge(ref, last, e)
	}
}

// MergePatch merges e and the last patch applied to an object, if that is still pending and of the
// same kind; nil: not possible. If the last is a heartbeat and e is not, it merges both and the
// write before them: otherwise each heartbeat between two changes would leave another entry, for as
// long as there is no link. dropped is then that heartbeat, to be removed.
func (b *Batch) MergePatch(delivered object.Object, laid []*Entry, e *Entry) (last, merged, dropped *Entry) {
	last, merged = b.mergePatch(delivered, laid, e)
	if merged == nil || merged.Volatile || !last.Volatile {
		return last, merged, nil
	}
	if earlier, all := b.mergePatch(delivered, laid[:len(laid)-1], merged); all != nil {
		return earlier, all, last
	}
	return last, merged, nil
}

// mergePatch makes one patch of the last of laid and of e.
func (b *Batch) mergePatch(delivered object.Object, laid []*Entry, e *Entry) (last, merged *Entry) {
	if len(laid) == 0 {
		return nil, nil
	}
	last = laid[len(laid)-1]
	if e.Local != last.Local {
		return nil, nil // one of them may be dropped without the other
	}
	if e.Volatile && !last.Volatile {
		return nil, nil // else the other would have to be written again
	}
	if b.o.under(last.ID) || last.Accepted || last.Verb != topicpb.Verb_PATCH || last.Class != e.Class ||
		last.Subresource != e.Subresource || last.UID != e.UID ||
		last.PatchType != types.StrategicMergePatchType || e.PatchType != types.StrategicMergePatchType {
		return nil, nil
	}
	base, err := before(delivered, laid)
	if err != nil {
		return nil, nil
	}
	body, _, err := object.MergePatches(base, last.Body, e.Body)
	if err != nil {
		return nil, nil
	}
	next := *last
	next.Body, next.Size, next.At, next.Volatile = body, len(body), e.At, e.Volatile
	return last, &next
}

// before is the decoded object under the last of entries: as delivered, with all but that
// one laid over it.
func before(delivered object.Object, entries []*Entry) (runtime.Object, error) {
	shown, _ := Overlay(delivered, entries[:len(entries)-1])
	return object.DecodeRaw(shown.Raw)
}
