package meta

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/edge/internal/object"
	"github.com/skerry-io/skerry/edge/internal/store"
	"github.com/skerry-io/skerry/edge/internal/store/storepb"
)

func (m *Manager) newBatch() *batch {
	return &batch{
		m: m, version: m.version, numbered: m.outbox.last, interest: m.outbox.lastInterest, events: m.outbox.events,
		objects:   map[schema.GroupVersionResource]map[key]*held{},
		changes:   map[schema.GroupVersionResource][]change{},
		queues:    map[target]*queue{},
		interests: map[uint64]*interest{},
	}
}

// save adds what goes to the store.
func (b *batch) save(do func(*store.Tx) error) { b.writes = append(b.writes, do) }

// after adds what is done, under the Manager's lock, once all is on the disk.
func (b *batch) after(do func()) { b.afters = append(b.afters, do) }

func (b *batch) write(tx *store.Tx) error {
	for _, w := range b.writes {
		if err := w(tx); err != nil {
			return err
		}
	}
	numbers := map[store.Number]uint64{store.Version: b.version}
	if b.numbered != b.m.outbox.last {
		numbers[store.Entry] = b.numbered
	}
	if b.interest != b.m.outbox.lastInterest {
		numbers[store.Interest] = b.interest
	}
	for n, v := range numbers {
		if err := tx.SetNumber(n, v); err != nil {
			return err
		}
	}
	return nil
}

// get finds an object as this batch leaves it; nil where there is none.
func (b *batch) get(ref object.Ref) *held {
	k := key{ref.Namespace, ref.Name}
	if staged, ok := b.objects[ref.Resource]; ok {
		if h, ok := staged[k]; ok {
			return h
		}
	}
	if t := b.m.tables[ref.Resource]; t != nil {
		return t.objects[k]
	}
	return nil
}

// digest sums up what this batch leaves of a resource.
func (b *batch) digest(resource schema.GroupVersionResource) (d digest) {
	t := b.m.tables[resource]
	if t != nil {
		d = t.digest
	}
	for k, h := range b.objects[resource] {
		if t != nil && t.objects[k] != nil {
			old := t.objects[k]
			d.toggle(old.shown.UID, old.shown.CloudVersion)
			d.count--
		}
		if h != nil {
			d.toggle(h.shown.UID, h.shown.CloudVersion)
			d.count++
		}
	}
	return d
}

// set stages an object, nil for its deletion, and gives the change a version where anybody can see it. The caller saves it.
func (b *batch) set(ref object.Ref, h *held) *held {
	before := b.get(ref)
	k := key{ref.Namespace, ref.Name}
	if before.visible() != nil || h.visible() != nil {
		b.version = b.m.next.Add(1)
		if h != nil {
			h.shown.Version = b.version
		}
		b.changes[ref.Resource] = append(b.changes[ref.Resource],
			change{version: b.version, key: k, before: before.visible(), after: h.visible()})
	} else if h != nil {
		h.shown.Version = b.version
	}
	b.put(ref, h)
	return h
}

// put stages an object without a change that anybody can see.
func (b *batch) put(ref object.Ref, h *held) {
	staged := b.objects[ref.Resource]
	if staged == nil {
		staged = map[key]*held{}
		b.objects[ref.Resource] = staged
		b.touched = append(b.touched, ref.Resource)
	}
	staged[key{ref.Namespace, ref.Name}] = h
}

// saveObject writes an object as delivered, with the version that it is shown with.
func (b *batch) saveObject(h *held) {
	record := &storepb.Object{
		Uid: string(h.shown.UID), Version: h.shown.Version, CloudVersion: h.shown.CloudVersion, Labels: h.labels, Raw: h.raw,
	}
	ref := h.shown.Ref
	b.save(func(tx *store.Tx) error { return tx.PutObject(ref, record) })
}

func (b *batch) saveDeletion(ref object.Ref) {
	b.save(func(tx *store.Tx) error { return tx.DeleteObject(ref) })
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

// interestNow is an interest as this batch leaves it, to look at; nil where there is none.
func (b *batch) interestNow(id uint64) *interest {
	if i, ok := b.interests[id]; ok {
		return i
	}
	return b.m.interests[id]
}

// stageInterest stages a change of an interest: the copy that it returns is the batch's to change.
func (b *batch) stageInterest(id uint64) *interest {
	if i, ok := b.interests[id]; ok {
		return i
	}
	have := b.m.interests[id]
	if have == nil {
		return nil
	}
	b.m.mu.RLock()
	i := *have
	b.m.mu.RUnlock()
	b.interests[id] = &i
	return &i
}

func (b *batch) saveInterest(i *interest) {
	record, id := i.record(), i.id
	b.save(func(tx *store.Tx) error { return tx.PutInterest(id, record) })
}

// retain is the pods that were taken back by a refusal and stay, the batch's own to change.
func (b *batch) retain() map[key]struct{} {
	if b.retained == nil {
		b.retained = maps.Clone(b.m.retained)
	}
	return b.retained
}
