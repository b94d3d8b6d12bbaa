package meta

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/linkstate"
	"github.com/skerry-io/skerry/edge/internal/object"
	"github.com/skerry-io/skerry/edge/internal/store"
	"github.com/skerry-io/skerry/edge/internal/store/storepb"
)

func (m *Manager) readStore(tx *store.Tx, to readInto) error {
	for n, v := range map[store.Number]*uint64{
		store.Version: to.version, store.Entry: to.entries, store.Interest: to.interests, store.Dropped: to.dropped,
	} {
		var err error
		if *v, err = tx.Number(n); err != nil {
			return err
		}
	}
	if err := tx.Entries(func(id uint64, r *storepb.Entry) error {
		t, e := entryOf(id, r)
		to.boxes[t] = append(to.boxes[t], e)
		if e.event() {
			to.bodies[id] = r.Body
		}
		return nil
	}); err != nil {
		return err
	}
	if err := tx.Interests(func(id uint64, r *storepb.Interest) error {
		to.found[id] = interestOf(id, r)
		return nil
	}); err != nil {
		return err
	}
	if err := tx.Answers(func(k []byte, a *storepb.Answer) error {
		to.answers[string(k)] = answerInfo{at: a.UnixMillis, bound: types.UID(a.BoundUid)}
		return nil
	}); err != nil {
		return err
	}
	if err := tx.Events(func(namespace, name string, r *storepb.Event) error {
		*to.ringed = append(*to.ringed, ringRecord{key{namespace, name}, r.Version, bytes.Clone(r.Raw)})
		return nil
	}); err != nil {
		return err
	}
	return tx.Objects(func(ref object.Ref, r *storepb.Object) error {
		*to.objects = append(*to.objects, object.Object{
			Ref: ref, UID: types.UID(r.Uid), Labels: r.Labels, Version: r.Version, CloudVersion: r.CloudVersion, Raw: r.Raw,
		})
		return nil
	})
}

// take puts the entries of a target that were read from the store into the outbox.
func (o *outbox) take(t target, es []*entry) {
	o.queues[t] = &queue{entries: es}
	for _, e := range es {
		o.targets[e.id] = t
		o.last = max(o.last, e.id)
		if e.event() {
			o.events.entries++
			o.events.bytes += e.size
			if i, found := slices.BinarySearch(o.eventOrder, e.id); !found {
				o.eventOrder = slices.Insert(o.eventOrder, i, e.id)
			}
		}
	}
}

// load reads the store into the view.
func (m *Manager) load(ctx context.Context) error {
	var stored, entries, interests, dropped uint64
	boxes := map[target][]*entry{}
	bodies := map[uint64][]byte{} // of events, for the ring
	var objects []object.Object
	var ringed []ringRecord
	found := map[uint64]*interest{}
	answers := map[string]answerInfo{}
	log := klog.FromContext(ctx)
	if err := m.config.Store.View(func(tx *store.Tx) error {
		return m.readStore(tx, readInto{
			version: &stored, entries: &entries, interests: &interests, dropped: &dropped,
			boxes: boxes, bodies: bodies, objects: &objects, ringed: &ringed, found: found, answers: answers,
		})
	}); err != nil {
		return err
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	m.reset() // an earlier run of this process may have left what it had
	// Versions of the ring and the Lease are not on the disk: leave a gap that no run fills.
	m.base = max(stored+versionGap, uint64(max(time.Now().UnixMilli(), 0)))
	m.version = m.base
	m.next.Store(m.base)
	m.outbox.last, m.outbox.lastInterest, m.outbox.dropped = entries, interests, dropped
	m.answers = answers
	for t, es := range boxes {
		m.outbox.take(t, es)
	}
	deps := false
	for id, i := range found {
		m.interests[id] = i
		m.tablesFor(i)
		deps = deps || i.deps
	}
	for _, o := range objects {
		obj, err := object.DecodeRaw(o.Raw)
		if err != nil {
			log.Error(err, "An object in the store can't be read; it is left out", "object", o.Ref)
			continue
		}
		entries := boxes[targetOf(o.Ref)]
		h := m.overlay(o, usesOf(obj), entries)
		for _, e := range entries {
			h.shown.Version = max(h.shown.Version, e.shownVersion)
		}
		m.countUses(nil, h)
		m.table(o.Resource).set(key{o.Namespace, o.Name}, h)
	}
	m.loadRing(ringed, bodies, log)

	var fresh *interest
	if !deps {
		m.outbox.lastInterest++
		fresh = &interest{id: m.outbox.lastInterest, deps: true, pinned: true, wake: make(chan struct{})}
		m.interests[fresh.id] = fresh
		m.tablesFor(fresh)
	}
	err := m.config.Store.Update(ctx, func(tx *store.Tx) error {
		if fresh != nil {
			if err := tx.PutInterest(fresh.id, fresh.record()); err != nil {
				return err
			}
			if err := tx.SetNumber(store.Interest, fresh.id); err != nil {
				return err
			}
		}
		return tx.SetNumber(store.Version, m.version)
	})
	if err != nil && fresh == nil {
		log.Error(err, "The store can't be written; the device goes on with what it has")
		return nil
	}
	return err
}

// reset forgets all but the Lease: what is known is on the disk.
func (m *Manager) reset() {
	m.tables = map[schema.GroupVersionResource]*table{}
	m.interests = map[uint64]*interest{}
	m.uses = map[dependency]int{}
	m.answers = map[string]answerInfo{}
	m.outbox, m.ring, m.retained = newOutbox(), newRing(), map[key]struct{}{}
	m.link, m.linked = linkstate.Link{}, false
	m.inbox.reset()
	m.sender.reset()
}

// versionGap is more than the ring and the Lease use up in years: at one change a second, 34 years.
const versionGap = 1 << 30

// readInto is where the store is read to.
type readInto struct {
	version, entries, interests, dropped *uint64

	boxes   map[target][]*entry
	bodies  map[uint64][]byte
	objects *[]object.Object
	ringed  *[]ringRecord
	found   map[uint64]*interest
	answers map[string]answerInfo
}

// loadRing fills the ring from the disk, and with the events that wait in the outbox, which may be newer. Called with the lock held.
func (m *Manager) loadRing(records []ringRecord, bodies map[uint64][]byte, log klog.Logger) {
	t := m.table(eventsResource)
	have := map[key]bool{}
	slices.SortFunc(records, func(a, b ringRecord) int { return cmp.Compare(a.version, b.version) })
	put := func(k key, version uint64, raw []byte) {
		o, err := object.FromRaw(eventsResource, raw)
		if err != nil {
			log.Error(err, "An event in the store can't be read; it is left out", "event", k)
			return
		}
		o.Version, o.CloudVersion = version, ""
		if !have[k] {
			m.ring.order = append(m.ring.order, k)
		}
		if old := t.objects[k]; old != nil {
			m.ring.bytes -= len(old.shown.Raw)
		}
		have[k] = true
		m.ring.bytes += len(o.Raw)
		t.set(k, &held{shown: o, raw: o.Raw})
	}
	for _, r := range records {
		put(r.key, r.version, r.raw)
	}
	for _, id := range m.outbox.eventOrder {
		k := m.outbox.targets[id].key
		obj, err := object.DecodeRaw(bodies[id])
		if err != nil {
			continue
		}
		raw, err := object.Encode(obj)
		if err == nil {
			put(k, m.base, raw)
		}
	}
}
