package view

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

// versionGap is more than is used up in years of the versions that are not on the disk, those of
// events and of the Lease: at one change a second, 34 years.
const versionGap = 1 << 30

// Stored is the stored state of a view.
type Stored struct {
	version, lastInterest uint64
	interests             map[uint64]*Interest
	objects               []object.Object
	gone                  gone
}

// Read reads it.
func Read(tx *store.Tx) (*Stored, error) {
	s := &Stored{interests: map[uint64]*Interest{}}
	var err error
	if s.version, err = tx.Number(store.Version); err != nil {
		return nil, err
	}
	if s.lastInterest, err = tx.Number(store.Interest); err != nil {
		return nil, err
	}
	if err := tx.Interests(func(id uint64, r *storepb.Interest) error {
		s.interests[id] = interestOf(id, r)
		return nil
	}); err != nil {
		return nil, err
	}
	if s.gone, err = readGone(tx); err != nil {
		return nil, err
	}
	err = tx.Objects(func(ref object.Ref, r *storepb.Object) error {
		s.objects = append(s.objects, object.Object{
			Ref: ref, UID: types.UID(r.Uid), Labels: object.NewLabels(r.Labels), Version: r.Version, CloudVersion: r.CloudVersion, Raw: r.Raw,
		})
		return nil
	})
	return s, err
}

// Restore replaces the view's state by the stored one. show returns the visible form of each
// object; nil skips it. The caller must call write; needed: the view can't be used otherwise.
func (v *View) Restore(s *Stored, show func(object.Object) *Held) (write func(*store.Tx) error, needed bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.reset()
	// Leave a gap that no run fills.
	v.base = max(s.version+versionGap, uint64(max(time.Now().UnixMilli(), 0)))
	v.version, v.lastInterest = v.base, s.lastInterest
	v.next.Store(v.base)
	v.gone = s.gone
	deps := false
	for id, i := range s.interests {
		v.interests[id] = i
		v.tablesFor(i)
		deps = deps || i.deps
	}
	for _, o := range s.objects {
		if h := show(o); h != nil {
			v.countUses(nil, h)
			v.table(o.Resource).set(keyOf(o.Ref), h)
		}
	}
	v.table(Events)
	version := v.version
	if deps {
		return func(tx *store.Tx) error { return tx.SetNumber(store.Version, version) }, false
	}
	v.lastInterest++
	fresh := &Interest{id: v.lastInterest, deps: true, pinned: true, wake: make(chan struct{})}
	v.interests[fresh.id] = fresh
	v.tablesFor(fresh)
	return func(tx *store.Tx) error {
		if err := tx.PutInterest(fresh.id, fresh.record()); err != nil {
			return err
		}
		if err := tx.SetNumber(store.Interest, fresh.id); err != nil {
			return err
		}
		return tx.SetNumber(store.Version, version)
	}, true
}

// RestoreEvent takes an event that was read from the store. It returns the previous record of the
// event.
func (v *View) RestoreEvent(o object.Object) (before *Held) {
	v.mu.Lock()
	defer v.mu.Unlock()
	t, k := v.table(Events), keyOf(o.Ref)
	before = t.objects[k]
	t.set(k, NewHeld(o, nil))
	return before
}
