package view

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/reply"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

// Batch is a set of changes that are worked out and neither on the disk nor shown. It works on
// copies: one that is dropped leaves no trace. It may be used until the next change of its View,
// by one goroutine.
type Batch struct {
	v         *View
	version   uint64
	objects   map[schema.GroupVersionResource]map[types.NamespacedName]*Held
	changes   map[schema.GroupVersionResource][]change
	touched   []schema.GroupVersionResource
	interests map[uint64]*Interest
	interest  uint64                            // the number of the newest interest that was given out
	retained  map[types.NamespacedName]struct{} // nil: as before
	link      *session                          // nil: as before
	gone      gone                              // those that change
	writes    []func(*store.Tx) error
}

// session is a session with the cloud, and whether it is open.
type session struct {
	link linkstate.Link
	up   bool
}

// Stage begins a batch.
func (v *View) Stage() *Batch {
	return &Batch{
		v: v, version: v.version, interest: v.lastInterest,
		objects:   map[schema.GroupVersionResource]map[types.NamespacedName]*Held{},
		changes:   map[schema.GroupVersionResource][]change{},
		interests: map[uint64]*Interest{},
	}
}

// save adds a write to the store.
func (b *Batch) save(do func(*store.Tx) error) { b.writes = append(b.writes, do) }

// Writes reports whether there are writes for the disk.
func (b *Batch) Writes() bool { return len(b.writes)+len(b.gone) > 0 }

// Write writes the batch's changes.
func (b *Batch) Write(tx *store.Tx) error {
	for _, w := range b.writes {
		if err := w(tx); err != nil {
			return err
		}
	}
	if err := b.gone.write(tx); err != nil {
		return err
	}
	if b.interest != b.v.lastInterest {
		if err := tx.SetNumber(store.Interest, b.interest); err != nil {
			return err
		}
	}
	return tx.SetNumber(store.Version, b.version)
}

// Version is the version that the batch's newest change is seen with.
func (b *Batch) Version() uint64 { return b.version }

// Link is the session with the cloud as this batch leaves it.
func (b *Batch) Link() (link linkstate.Link, up bool) {
	if b.link != nil {
		return b.link.link, b.link.up
	}
	return b.v.link, b.v.linked
}

// SetLink stages that a session is open, or has ended.
func (b *Batch) SetLink(link linkstate.Link, up bool) { b.link = &session{link, up} }

// Get finds an object as this batch leaves it; nil without one.
func (b *Batch) Get(ref object.Ref) *Held {
	if staged, ok := b.objects[ref.Resource]; ok {
		if h, ok := staged[keyOf(ref)]; ok {
			return h
		}
	}
	return b.v.held(ref)
}

// Expects reports whether a digest equals that of its resource after this batch.
func (b *Batch) Expects(p *topicpb.Digest) bool {
	resource := ResourceOf(p.GetResource())
	t := b.v.tables[resource]
	var d digest
	if t != nil {
		d = t.digest
	}
	for k, h := range b.objects[resource] {
		if t != nil && t.objects[k] != nil {
			old := t.objects[k]
			d.toggle(old.Shown.UID, old.Shown.CloudVersion)
			d.count--
		}
		if h != nil {
			d.toggle(h.Shown.UID, h.Shown.CloudVersion)
			d.count++
		}
	}
	return d.is(p)
}

// Set stages an object, nil for its deletion, and gives the change a version where any client can
// see it. The caller saves it.
func (b *Batch) Set(ref object.Ref, h *Held) *Held {
	before := b.Get(ref)
	k := keyOf(ref)
	if before.Visible() != nil || h.Visible() != nil {
		b.version = b.v.NextVersion()
		if h != nil {
			h.Shown.Version = b.version
		}
		b.changes[ref.Resource] = append(b.changes[ref.Resource],
			change{version: b.version, key: k, before: before.Visible(), after: h.Visible()})
	} else if h != nil {
		h.Shown.Version = b.version
	}
	staged := b.objects[ref.Resource]
	if staged == nil {
		staged = map[types.NamespacedName]*Held{}
		b.objects[ref.Resource] = staged
		b.touched = append(b.touched, ref.Resource)
	}
	staged[k] = h
	return h
}

// Save writes an object as delivered, with the version that it is shown with.
func (b *Batch) Save(h *Held) {
	o := h.Delivered()
	record := &storepb.Object{Uid: string(o.UID), Version: o.Version, CloudVersion: o.CloudVersion, Labels: o.Labels.Map(), Raw: o.Raw}
	ref := o.Ref
	b.save(func(tx *store.Tx) error { return tx.PutObject(ref, record) })
}

// SaveDeletion writes that an object is gone.
func (b *Batch) SaveDeletion(ref object.Ref) {
	b.save(func(tx *store.Tx) error { return tx.DeleteObject(ref) })
}

// Sizes calls do for each object of a resource that this batch sets: the bytes before and after it,
// -1 stands for no object.
func (b *Batch) Sizes(resource schema.GroupVersionResource, do func(before, after int)) {
	size := func(h *Held) int {
		if h == nil {
			return -1
		}
		return len(h.Shown.Raw)
	}
	for k, h := range b.objects[resource] {
		var before *Held
		if t := b.v.tables[resource]; t != nil {
			before = t.objects[k]
		}
		do(size(before), size(h))
	}
}

// Interest is an interest as this batch leaves it, to look at; nil without one.
func (b *Batch) Interest(id uint64) *Interest {
	if i, ok := b.interests[id]; ok {
		return i
	}
	return b.v.interests[id]
}

// stageInterest stages a change of an interest: the copy that it returns is the batch's to change.
func (b *Batch) stageInterest(id uint64) *Interest {
	if i, ok := b.interests[id]; ok {
		return i
	}
	have := b.v.interests[id]
	if have == nil {
		return nil
	}
	b.v.mu.RLock()
	i := *have
	b.v.mu.RUnlock()
	b.interests[id] = &i
	return &i
}

func (b *Batch) saveInterest(i *Interest) {
	record, id := i.record(), i.id
	b.save(func(tx *store.Tx) error { return tx.PutInterest(id, record) })
}

// Want stages an interest of a selection that no interest covers yet.
func (b *Batch) Want(s object.Selection, pinned bool) error {
	if have := b.v.covering(s); have != nil {
		if pinned && !have.pinned && !have.deps {
			i := b.stageInterest(have.id)
			i.pinned = true
			b.saveInterest(i)
		}
		return nil
	}
	for _, i := range b.interests { // one that the same batch makes
		if i != nil && i.covers(s) {
			return nil
		}
	}
	if len(b.v.interests)+len(b.interests) >= b.v.config.Limits.Interests {
		return reply.TooMany("this node holds as many sets of objects as it may")
	}
	b.interest++
	i := &Interest{
		id: b.interest, Resource: s.Resource, Namespace: s.Namespace, labels: s.LabelString(), Fields: s.FieldString(), pinned: pinned,
		wake: make(chan struct{}),
	}
	b.interests[i.id] = i
	b.saveInterest(i)
	return nil
}

// Synced stages that the whole set of an interest has come.
func (b *Batch) Synced(id uint64) {
	if i := b.Interest(id); i == nil || i.synced && i.refused == nil {
		return
	}
	i := b.stageInterest(id)
	i.synced, i.refused = true, nil
	b.saveInterest(i)
}

// Refuse stages that kube-apiserver does not let this node have a set. It returns the interest, nil
// if it is unknown.
func (b *Batch) Refuse(id uint64, why *metav1.Status) *Interest {
	i := b.stageInterest(id)
	if i == nil {
		return nil
	}
	i.refused = why
	if i.synced && !b.v.own(i) {
		i.synced = false
		b.saveInterest(i)
	}
	return i
}

// KeepsPods reports whether pods stay although the cloud takes them back: it refuses the set
// that they are of.
func (b *Batch) KeepsPods() bool {
	for id, i := range b.v.interests {
		if staged, ok := b.interests[id]; ok {
			i = staged
		}
		if i != nil && i.refused != nil && i.synced && b.v.own(i) {
			return true
		}
	}
	return false
}

// OwnPods reports whether the interest is in the kubelet's own pods.
func (b *Batch) OwnPods(i *Interest) bool { return b.v.own(i) }

// retain is the pods that were taken back by a refusal and stay, the batch's own to change.
func (b *Batch) retain() map[types.NamespacedName]struct{} {
	if b.retained == nil {
		b.retained = maps.Clone(b.v.retained)
	}
	return b.retained
}

// Retain stages that a pod stays although the cloud took it back.
func (b *Batch) Retain(pod object.Ref) { b.retain()[keyOf(pod)] = struct{}{} }

// Unretain stages that a pod was delivered again.
func (b *Batch) Unretain(pod object.Ref) { delete(b.retain(), keyOf(pod)) }

// TakeRetained stages the end of retained pods that the cloud has withdrawn, and returns them.
func (b *Batch) TakeRetained() (pods []object.Ref) {
	for k := range b.retain() {
		pods = append(pods, object.Ref{Resource: Pods, Namespace: k.Namespace, Name: k.Name})
	}
	clear(b.retained)
	return pods
}

// Gone stages that an object's deletion was delivered, at a version of its resource; "" if it has
// no version.
func (b *Batch) Gone(resource schema.GroupVersionResource, version string) {
	n := object.Number(version)
	if n == 0 || b.gone[resource] == n || b.gone == nil && b.v.gone[resource] == n {
		return
	}
	if b.gone == nil {
		b.gone = gone{}
	}
	b.gone[resource] = n
}

// Drop stages the end of interests that are still idle, and returns the objects of resources
// without any interest left. The cloud withdraws other objects that no interest matches.
func (b *Batch) Drop(ids []uint64) (gone []object.Ref) {
	v := b.v
	v.mu.RLock() // uses continue in the meantime
	defer v.mu.RUnlock()
	touched := map[schema.GroupVersionResource]bool{}
	for _, id := range ids {
		i := v.interests[id]
		if i == nil || i.watchers > 0 || i.idle <= v.config.Limits.InterestIdle {
			continue // used again in the meantime
		}
		b.interests[id] = nil
		b.save(func(tx *store.Tx) error { return tx.DeleteInterest(id) })
		touched[i.Resource] = true
	}
	for _, i := range v.interests {
		if staged, ok := b.interests[i.id]; !ok || staged != nil {
			delete(touched, i.Resource)
		}
	}
	for r := range touched {
		if object.Travels(r) || v.tables[r] == nil {
			continue
		}
		for _, k := range v.tables[r].keys() {
			gone = append(gone, object.Ref{Resource: r, Namespace: k.Namespace, Name: k.Name})
		}
	}
	return gone
}
