package meta

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/meta/reply"
	"github.com/skerry-io/skerry/edge/internal/object"
	"github.com/skerry-io/skerry/edge/internal/store"
	"github.com/skerry-io/skerry/edge/internal/store/storepb"
)

// request is one change on its way through the core.
type request struct {
	do   func(*batch) error
	done chan error // one slot
}

// do has the core work out a change and waits until it is on the disk and shown. The function runs in the core; it either stages all that it wants
// and returns nil, or it stages nothing and returns an error. It may run again when the batch that it was part of failed.
func (m *Manager) do(ctx context.Context, do func(*batch) error) error {
	r := &request{do: do, done: make(chan error, 1)}
	m.mu.RLock()
	running := m.running
	m.mu.RUnlock()
	if !running {
		return reply.ErrStopped
	}
	select {
	case m.requests <- r:
	case <-ctx.Done():
		return fmt.Errorf("waiting for metamanager: %w", context.Cause(ctx))
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("waiting for metamanager: %w", context.Cause(ctx))
	}
}

// core decides every change, one batch after another.
func (m *Manager) core(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			m.refuse()
			return nil
		case r := <-m.requests:
			batch := []*request{r}
			for more := true; more && len(batch) < cap(m.requests); {
				select {
				case r := <-m.requests:
					batch = append(batch, r)
				default:
					more = false
				}
			}
			m.process(ctx, batch)
		}
	}
}

// refuse answers what waits after the end. Callers that come later wait for their own contexts; stop has told them already.
func (m *Manager) refuse() {
	m.mu.Lock()
	m.running = false
	m.mu.Unlock()
	for {
		select {
		case r := <-m.requests:
			r.done <- reply.ErrStopped
		default:
			return
		}
	}
}

func (m *Manager) process(ctx context.Context, requests []*request) {
	b := m.newBatch()
	taken := requests[:0:0]
	for _, r := range requests {
		if err := r.do(b); err != nil {
			r.done <- err
			continue
		}
		taken = append(taken, r)
	}
	m.at(PointStaged)
	if len(b.writes) > 0 {
		if err := m.config.Store.Update(ctx, b.write); err != nil {
			if len(taken) > 1 && !errors.Is(err, store.ErrDamaged) { // one that is too large for the room left must not take the small ones with it
				for _, r := range taken {
					m.process(ctx, []*request{r})
				}
				return
			}
			m.counters.failed.Add(1)
			klog.FromContext(ctx).Error(err, "A change could not be kept")
			for _, r := range taken {
				r.done <- err
			}
			return
		}
	}
	m.at(PointKept)
	m.show(b)
	for _, r := range taken {
		r.done <- nil
	}
	m.pump()
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

// show makes a batch that is on the disk visible.
func (m *Manager) show(b *batch) {
	type delivery struct {
		c        change
		watchers []*watcher
	}
	var deliveries []delivery
	m.mu.Lock()
	m.version = b.version
	for _, resource := range b.touched {
		t := m.table(resource)
		for k, h := range b.objects[resource] {
			m.countUses(t.objects[k], h)
			t.set(k, h)
		}
		for _, c := range b.changes[resource] {
			t.remember(c, m.config.Limits)
			deliveries = append(deliveries, delivery{c, t.watchersOf(c.key)})
		}
	}
	for id, i := range b.interests {
		m.showInterest(id, i)
	}
	if b.retained != nil {
		m.retained = b.retained
	}
	m.outbox.show(b)
	for _, do := range b.afters {
		do()
	}
	m.mu.Unlock()
	for _, d := range deliveries {
		for _, w := range d.watchers {
			w.deliver(d.c)
		}
	}
}

// table finds or makes the table of a resource. Only the core makes them, with the lock held for writing.
func (m *Manager) table(resource schema.GroupVersionResource) *table {
	t := m.tables[resource]
	if t == nil {
		t = newTable(resource, m.base)
		t.local = resource == eventsResource
		m.tables[resource] = t
	}
	return t
}
