package view

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/dependency"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// ownPods is the selection that a kubelet watches. A pod's node never changes, so for the kubelet a
// pod that is not in this set is gone.
func (v *View) ownPods() object.Selection {
	return object.Selection{Resource: Pods, Fields: fields.OneTermEqualSelector("spec.nodeName", v.config.Node)}
}

// own reports whether the set is the kubelet's own pods. A cloud that refuses it, by mistake or by
// a change of rights, does not end pods that run: as with a kubelet whose watch is forbidden, they
// go on as they were.
func (v *View) own(i *Interest) bool {
	return i.Resource == Pods && i.Namespace == "" && i.labels == "" && i.Fields == v.ownPods().FieldString()
}

// valid reports whether the cached set may be served.
func (v *View) valid(i *Interest) bool { return i.synced && (i.refused == nil || v.own(i)) }

// answerable reports whether the view has all objects of the selection. Called with the lock held.
func (v *View) answerable(s object.Selection) bool {
	if s.Resource == Events {
		return true
	}
	for _, i := range v.interests {
		switch {
		case !i.covers(s) && (!i.deps || !v.travelsHere(s)):
		case v.valid(i), i.refused == nil && v.holdsNamed(s):
			return true
		}
	}
	return false
}

// holdsNamed reports whether the selection names one object, and that one is held: it is current,
// also while others of its set are missing. Called with the lock held.
func (v *View) holdsNamed(s object.Selection) bool {
	name, t := s.Name(), v.tables[s.Resource]
	return name != "" && t != nil && t.objects[types.NamespacedName{Namespace: s.Namespace, Name: name}].Visible() != nil
}

// covering finds the interest that covers the selection, synced or not; the dependencies last.
func (v *View) covering(s object.Selection) *Interest {
	var best *Interest
	for _, i := range v.interests {
		if i.covers(s) && (best == nil || v.better(i, best)) {
			best = i
		}
	}
	if best != nil {
		return best
	}
	for _, i := range v.interests {
		if i.deps && v.travelsHere(s) {
			return i
		}
	}
	return nil
}

// better: one that can answer before one that can't, then the older.
func (v *View) better(a, b *Interest) bool {
	if x, y := v.valid(a), v.valid(b); x != y {
		return x
	}
	return a.id < b.id
}

// Covered reports whether the selection can be answered here and now, link or no link.
func (v *View) Covered(s object.Selection) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.running && v.answerable(s)
}

func (v *View) tablesFor(i *Interest) {
	if !i.deps {
		v.table(i.Resource)
		return
	}
	for _, r := range object.Travelling() {
		v.table(r)
	}
}

// table finds or makes the table of a resource. Only the goroutine that shows makes them, with the
// lock held for writing.
func (v *View) table(resource schema.GroupVersionResource) *table {
	t := v.tables[resource]
	if t == nil {
		t = newTable(resource, v.base)
		t.local = resource == Events
		v.tables[resource] = t
	}
	return t
}

// countUses keeps the index of the objects that pods refer to. Called with the lock held.
func (v *View) countUses(before, after *Held) {
	if before != nil {
		for _, d := range before.uses() {
			if v.uses[d]--; v.uses[d] <= 0 {
				delete(v.uses, d)
			}
		}
	}
	if after != nil {
		for _, d := range after.uses() {
			v.uses[d]++
		}
	}
}

// travelsHere reports whether a selection is a single object that some pod here refers to. Called
// with the lock held.
func (v *View) travelsHere(s object.Selection) bool {
	name := s.Name()
	if name == "" || !object.Travels(s.Resource) {
		return false
	}
	key := types.NamespacedName{Namespace: s.Namespace, Name: name}
	switch s.Resource {
	case dependency.Volumes:
		return v.claimed(name)
	case dependency.Attachments: // its name is made of the volume's: see dependency.Ref.On
		return v.holdsNamed(s)
	}
	return v.uses[use{s.Resource, key}] > 0 && (dependency.Always(s.Resource) || v.holdsNamed(s))
}

// claimed reports whether a claim of some pod here has that volume.
func (v *View) claimed(volume string) bool {
	claims := v.tables[dependency.Claims]
	if claims == nil {
		return false
	}
	for k, h := range claims.objects {
		if v.uses[use{dependency.Claims, k}] == 0 {
			continue
		}
		obj, err := object.DecodeRaw(h.Delivered().Raw)
		if err != nil {
			continue
		}
		if claim, ok := obj.(*corev1.PersistentVolumeClaim); ok && claim.Spec.VolumeName == volume {
			return true
		}
	}
	return false
}

// someSet reports whether any set of the resource can be answered. Called with the lock held.
func (v *View) someSet(r schema.GroupVersionResource) bool {
	if r == Events {
		return true
	}
	for _, i := range v.interests {
		if v.valid(i) && (i.Resource == r && !i.deps || i.deps && object.Travels(r)) {
			return true
		}
	}
	return false
}

// snapshot returns the objects that a selection may match: by resource, namespace and name alone;
// the selectors are not evaluated under the lock.
func (v *View) snapshot(s object.Selection) []*Held {
	t := v.tables[s.Resource]
	if t == nil {
		return nil
	}
	if name := s.Name(); name != "" && s.Namespace != "" {
		if h := t.objects[types.NamespacedName{Namespace: s.Namespace, Name: name}].Visible(); h != nil {
			return []*Held{h}
		}
		return nil
	}
	hs := make([]*Held, 0, len(t.objects))
	for k, h := range t.objects {
		if !h.hidden && (s.Namespace == "" || s.Namespace == k.Namespace) {
			hs = append(hs, h)
		}
	}
	return hs
}

// ComesDown reports whether an object belongs to a set that is held here.
func (v *View) ComesDown(o object.Object) bool {
	v.mu.RLock()
	var sets []object.Selection
	for _, i := range v.interests {
		if i.Resource == o.Resource && i.refused == nil && i.synced && !i.deps {
			if s, err := i.selection(); err == nil {
				sets = append(sets, s)
			}
		}
	}
	v.mu.RUnlock()
	return slices.ContainsFunc(sets, func(s object.Selection) bool {
		ok, err := s.Matches(o)
		return ok && err == nil
	})
}

// Gone reports whether an object that is not held is certain not to be there, to the
// kubelet: see Get.
func (v *View) Gone(ref object.Ref) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return ref.Resource == Pods && v.answerable(v.ownPods())
}
