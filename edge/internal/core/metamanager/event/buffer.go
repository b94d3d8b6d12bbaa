// Package event is the events of this device: the newest of them, as the edge API shows them, and
// how one is made.
//
// It owns the set of kept events, their order, and their records on the disk. It refuses events
// that kube-apiserver would refuse. One goroutine changes a Buffer; Flush may be called by another.
package event

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager/view"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

// Buffer is the newest events of this device. It is current in memory and some time behind on the
// disk, where it serves to be read after a restart. Events for the cloud are in the outbox.
type Buffer struct {
	limits Limits // set by New, never changed

	order []types.NamespacedName // oldest first; owned by the goroutine that changes it
	bytes int                    // of them

	mu sync.Mutex // guards the fields below
	// dirty has the changes that the disk lacks; nil is a removed event. Its bound, also while the
	// disk is full: the current events and those on the disk. An event that was added and removed
	// in between leaves no entry here and is never written.
	dirty  map[types.NamespacedName]*storepb.Event
	stored map[types.NamespacedName]struct{} // on the disk, or on their way there
}

// Limits bound a Buffer.
type Limits struct {
	Events int // that are kept; the oldest go first
	Bytes  int // of those
}

// New returns an empty Buffer.
func New(limits Limits) *Buffer {
	return &Buffer{limits: limits, dirty: map[types.NamespacedName]*storepb.Event{}, stored: map[types.NamespacedName]struct{}{}}
}

// Stored is an event that the store has.
type Stored struct {
	Ref     object.Ref
	Version uint64
	Raw     []byte
}

// Read reads the stored events, the oldest first.
func Read(tx *store.Tx) (all []Stored, err error) {
	err = tx.Events(func(namespace, name string, r *storepb.Event) error {
		all = append(all, Stored{Ref(namespace, name), r.Version, bytes.Clone(r.Raw)})
		return nil
	})
	slices.SortFunc(all, func(a, b Stored) int { return cmp.Compare(a.Version, b.Version) })
	return all, err
}

func keyOf(ref object.Ref) types.NamespacedName {
	return types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
}

// Ref names an event.
func Ref(namespace, name string) object.Ref {
	return object.Ref{Resource: view.Events, Namespace: namespace, Name: name}
}

// Forget clears the events and the record of their unwritten changes.
func (r *Buffer) Forget() {
	r.order, r.bytes = nil, 0
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dirty, r.stored = map[types.NamespacedName]*storepb.Event{}, map[types.NamespacedName]struct{}{}
}

// Restore takes an event that is on the disk; before is how large it was, -1 where it is new.
func (r *Buffer) Restore(ref object.Ref, before, now int) {
	r.count(ref, before, now)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stored[keyOf(ref)] = struct{}{}
}

func (r *Buffer) count(ref object.Ref, before, now int) {
	if before < 0 {
		r.order = append(r.order, keyOf(ref))
		before = 0
	}
	r.bytes += now - before
}

// Put adds an event in its visible form; before is its previous size, -1 if it is new.
func (r *Buffer) Put(o object.Object, before int) {
	r.count(o.Ref, before, len(o.Raw))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dirty[keyOf(o.Ref)] = &storepb.Event{Version: o.Version, Raw: o.Raw}
}

// Remove takes an event out, which was so large.
func (r *Buffer) Remove(ref object.Ref, size int) {
	if i := slices.Index(r.order, keyOf(ref)); i >= 0 {
		r.order = slices.Delete(r.order, i, i+1)
		r.bytes -= size
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(keyOf(ref))
}

// drop notes that an event is gone. The lock is held.
func (r *Buffer) drop(k types.NamespacedName) {
	if _, there := r.stored[k]; there {
		r.dirty[k] = nil
	} else {
		delete(r.dirty, k)
	}
}

// Count is how many events there are, and how large they are.
type Count struct{ Events, Bytes int }

// Add counts a change of an event from one size to another, -1 if it does not exist.
func (c *Count) Add(before, after int) {
	if before >= 0 {
		c.Events--
		c.Bytes -= before
	}
	if after >= 0 {
		c.Events++
		c.Bytes += after
	}
}

// Count counts the events.
func (r *Buffer) Count() Count { return Count{len(r.order), r.bytes} }

// Trim offers events for removal, the oldest first, while there are more than the limit allows: c
// is their future count. remove returns the size of the removed event, -1 if it removed no event.
func (r *Buffer) Trim(c Count, remove func(object.Ref) int) {
	for _, k := range r.order {
		if c.Events <= r.limits.Events && c.Bytes <= r.limits.Bytes {
			return
		}
		if size := remove(Ref(k.Namespace, k.Name)); size >= 0 {
			c.Add(size, -1)
		}
	}
}

// Flush writes the changes since the last call, if there are any. Changes that could not be written
// are retried by the next call.
func (r *Buffer) Flush(ctx context.Context, s *store.Store) error {
	dirty, fresh := r.take()
	if len(dirty) == 0 {
		return nil
	}
	err := s.Update(ctx, func(tx *store.Tx) error {
		for k, e := range dirty {
			if e == nil {
				if err := tx.DeleteEvent(k.Namespace, k.Name); err != nil {
					return err
				}
			} else if err := tx.PutEvent(k.Namespace, k.Name, e); err != nil {
				return err
			}
		}
		return nil
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		for k, e := range dirty {
			if e != nil {
				continue
			}
			delete(r.stored, k)
			if now, newer := r.dirty[k]; newer && now == nil {
				r.drop(k)
			}
		}
		return nil
	}
	for _, k := range fresh {
		delete(r.stored, k)
	}
	for k, e := range dirty {
		switch now, newer := r.dirty[k]; {
		case !newer:
			r.dirty[k] = e
		case now == nil:
			r.drop(k)
		}
	}
	return err
}

// take takes the changes that the disk lacks; fresh are the events among them that the disk has not
// had yet.
func (r *Buffer) take() (dirty map[types.NamespacedName]*storepb.Event, fresh []types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	dirty = r.dirty
	r.dirty = map[types.NamespacedName]*storepb.Event{}
	for k, e := range dirty {
		if _, there := r.stored[k]; e != nil && !there {
			r.stored[k] = struct{}{}
			fresh = append(fresh, k)
		}
	}
	return dirty, fresh
}
