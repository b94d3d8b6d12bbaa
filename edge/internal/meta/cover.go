package meta

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/edge/internal/object"
)

// ownPods is what a kubelet watches. A pod's node never changes, so for the kubelet a pod that is not in this set is gone.
func (m *Manager) ownPods() object.Selection {
	return object.Selection{Resource: podsResource, Fields: fields.OneTermEqualSelector("spec.nodeName", m.config.NodeName)}
}

// own reports whether the set is the kubelet's own pods. A cloud that refuses it, by mistake or by a change of rights, does not end pods that run: as
// with a kubelet whose watch is forbidden, they go on as they were.
func (m *Manager) own(i *interest) bool {
	return i.resource == podsResource && i.namespace == "" && i.labels == "" && i.fields == m.ownPods().FieldString()
}

// valid reports whether what is held of the set may be served.
func (m *Manager) valid(i *interest) bool { return i.synced && (i.refused == nil || m.own(i)) }

// answerable reports whether the view has all that the selection asks for. Called with the lock held.
func (m *Manager) answerable(s object.Selection) bool {
	if s.Resource == eventsResource {
		return true
	}
	for _, i := range m.interests {
		switch {
		case !i.covers(s) && (!i.deps || !m.travelsHere(s)):
		case m.valid(i), i.refused == nil && m.holdsNamed(s):
			return true
		}
	}
	return false
}

// holdsNamed reports whether the selection names one object, and that one is held: it is current,
// also while others of its set are missing. Called with the lock held.
func (m *Manager) holdsNamed(s object.Selection) bool {
	name, t := s.Name(), m.tables[s.Resource]
	return name != "" && t != nil && t.objects[key{s.Namespace, name}].visible() != nil
}

// covering finds the interest that covers the selection, synced or not; the dependencies last.
func (m *Manager) covering(s object.Selection) *interest {
	var best *interest
	for _, i := range m.interests {
		if i.covers(s) && (best == nil || m.better(i, best)) {
			best = i
		}
	}
	if best != nil {
		return best
	}
	for _, i := range m.interests {
		if i.deps && m.travelsHere(s) {
			return i
		}
	}
	return nil
}

// better: one that can answer before one that can't, then the older.
func (m *Manager) better(a, b *interest) bool {
	if x, y := m.valid(a), m.valid(b); x != y {
		return x
	}
	return a.id < b.id
}

// Covered reports whether the selection can be answered here and now, link or no link.
func (m *Manager) Covered(s object.Selection) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.running && m.answerable(s)
}

func (m *Manager) tablesFor(i *interest) {
	if !i.deps {
		m.table(i.resource)
		return
	}
	for _, r := range object.Travelling() {
		m.table(r)
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

// countUses keeps the index of what pods refer to. Called with the lock held.
func (m *Manager) countUses(before, after *held) {
	if before != nil {
		for _, d := range before.uses {
			if m.uses[d]--; m.uses[d] <= 0 {
				delete(m.uses, d)
			}
		}
	}
	if after != nil {
		for _, d := range after.uses {
			m.uses[d]++
		}
	}
}

// travelsHere reports whether a selection is of one object that some pod here refers to. Called with the lock held.
func (m *Manager) travelsHere(s object.Selection) bool {
	name := s.Name()
	if name == "" || !object.Travels(s.Resource) {
		return false
	}
	if s.Resource.Resource != "persistentvolumes" {
		return m.uses[dependency{s.Resource.Resource, key{s.Namespace, name}}] > 0
	}
	claims := m.tables[core("persistentvolumeclaims")]
	if claims == nil {
		return false
	}
	for k, h := range claims.objects {
		if m.uses[dependency{"persistentvolumeclaims", k}] == 0 {
			continue
		}
		obj, err := object.DecodeRaw(h.raw)
		if err != nil {
			continue
		}
		if claim, ok := obj.(*corev1.PersistentVolumeClaim); ok && claim.Spec.VolumeName == name {
			return true
		}
	}
	return false
}

// someSet reports whether any set of the resource can be answered. Called with the lock held.
func (m *Manager) someSet(r schema.GroupVersionResource) bool {
	if r == eventsResource {
		return true
	}
	for _, i := range m.interests {
		if m.valid(i) && (i.resource == r && !i.deps || i.deps && object.Travels(r)) {
			return true
		}
	}
	return false
}

// snapshot is what a selection may match: by resource, namespace and name alone, for the rest is not worked out under the lock.
func (m *Manager) snapshot(s object.Selection) []*held {
	t := m.tables[s.Resource]
	if t == nil {
		return nil
	}
	if name := s.Name(); name != "" && s.Namespace != "" {
		if h := t.objects[key{s.Namespace, name}].visible(); h != nil {
			return []*held{h}
		}
		return nil
	}
	hs := make([]*held, 0, len(t.objects))
	for k, h := range t.objects {
		if !h.hidden && (s.Namespace == "" || s.Namespace == k.namespace) {
			hs = append(hs, h)
		}
	}
	return hs
}
