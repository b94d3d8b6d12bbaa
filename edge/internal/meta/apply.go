package meta

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/meta/reply"
	"github.com/skerry-io/skerry/edge/internal/object"
)

// maxMismatches is how many resources a cloud can be mistaken about in one session; beyond, it is believed.
const maxMismatches = 1024

// applyState stages what a State says, and notes in digestMismatches what it expects and is not so.
func (m *Manager) applyState(b *batch, s *topicpb.State, found digestMismatches, log klog.Logger) {
	m.applyRefusals(b, s, log) // first: what is taken back because of a refusal comes with it or after it
	for _, changes := range s.Changes {
		resource := resourceOf(changes.Resource)
		for _, c := range changes.Items {
			ref := object.Ref{Resource: resource, Namespace: c.Namespace, Name: c.Name}
			if c.Deleted {
				if resource == podsResource && m.keepsPods(b) {
					b.retain()[key{c.Namespace, c.Name}] = struct{}{}
					continue
				}
				b.forget(ref)
				continue
			}
			if err := m.applyObject(b, ref, c); err != nil {
				m.counters.malformed.Add(1)
				log.Error(err, "An object that the cloud sent can't be read; it is left out", "object", ref)
			}
		}
	}
	for _, e := range s.Expected {
		resource := resourceOf(e.GetResource())
		if !found.told[resource] && len(found.told) < maxMismatches && !b.digest(resource).is(e) {
			found.told[resource], found.open[resource] = true, true
			log.V(2).Info("The cloud expects something else", "resource", resource)
		} else {
			delete(found.open, resource)
		}
	}
	for _, id := range s.Synced {
		i := b.interestNow(id)
		if i == nil || found.concern(i) {
			continue
		}
		m.dropAccepted(b, i)
		if m.own(i) {
			b.release()
		}
		if i.synced && i.refused == nil {
			continue
		}
		i = b.stageInterest(id)
		i.synced, i.refused = true, nil
		b.saveInterest(i)
	}
}

// applyRefusals stages what the cloud refuses.
func (m *Manager) applyRefusals(b *batch, s *topicpb.State, log klog.Logger) {
	for _, r := range s.Refused {
		i := b.stageInterest(r.Interest)
		if i == nil {
			continue
		}
		st := &metav1.Status{}
		if err := json.Unmarshal(r.Status, st); err != nil || st.Code < 400 {
			st = &reply.Status(403, metav1.StatusReasonForbidden, "kube-apiserver does not allow this node to have this", 0).ErrStatus
		}
		log.Info("The cloud refuses a set of objects", "resource", i.resource, "namespace", i.namespace, "fields", i.fields, "reason", st.Message)
		i.refused = st
		if i.synced && !m.own(i) {
			i.synced = false
			b.saveInterest(i)
		}
	}
}

// keepsPods reports whether pods stay although the cloud takes them back: it refuses the set that they are of.
func (m *Manager) keepsPods(b *batch) bool {
	for id, i := range m.interests {
		if staged, ok := b.interests[id]; ok {
			i = staged
		}
		if i != nil && i.refused != nil && i.synced && m.own(i) {
			return true
		}
	}
	return false
}

// applyObject stages the newest state of one object.
func (m *Manager) applyObject(b *batch, ref object.Ref, c *topicpb.Change) error {
	obj, err := object.DecodeRaw(c.Object)
	if err != nil {
		return err
	}
	o, err := object.FromDecoded(ref, obj, c.Object)
	if err != nil {
		return err
	}
	uid, version := cmp.Or(types.UID(c.Uid), o.UID), cmp.Or(c.ResourceVersion, o.CloudVersion)
	have := b.get(ref)
	if ref.Resource == podsResource {
		delete(b.retain(), key{ref.Namespace, ref.Name})
	}
	if have != nil && have.shown.UID == uid && have.shown.CloudVersion == version {
		return nil // came again: nothing that anybody could see
	}
	o.UID, o.CloudVersion = uid, version
	t := targetOf(ref)
	// What the cloud took is in what it sends now, or was undone there.
	b.remove(t, func(e *entry) bool {
		if !e.accepted {
			return false
		}
		return (e.uid != "" && e.uid != o.UID) || (e.verb == topicpb.Verb_PATCH && !object.Older(o.CloudVersion, e.acceptedVersion))
	})
	h := m.overlay(o, usesOf(obj), b.pending(t))
	b.set(ref, h)
	if have != nil && ref.Resource == nodesResource {
		if before, err := object.DecodeRaw(have.raw); err == nil && object.OnlyHeartbeat(before, obj) {
			return nil // not worth a write: should we restart now, the cloud sends it once more
		}
	}
	b.saveObject(h)
	return nil
}

// dropAccepted drops what was accepted in earlier sessions of an interest's objects: its whole set has
// come now, from a copy that had reached those writes (Digest.Written), so it is as the cloud has it.
func (m *Manager) dropAccepted(b *batch, i *interest) {
	var refs []object.Ref
	for t := range m.outbox.queues {
		if (i.deps && object.Travels(t.resource)) || (!i.deps && t.resource == i.resource && (i.namespace == "" || i.namespace == t.namespace)) {
			refs = append(refs, t.ref())
		}
	}
	for _, ref := range refs {
		if b.remove(targetOf(ref), func(e *entry) bool { return e.accepted && e.acceptedEpoch < m.link.Epoch }) > 0 {
			b.reapply(ref)
		}
	}
}

// applyResult stages the end of a write.
func (m *Manager) applyResult(b *batch, r *topicpb.WriteResult, log klog.Logger) {
	t, ok := m.outbox.targets[r.Id]
	if !ok {
		return // told twice: the link was renewed in between
	}
	pending := b.pending(t)
	i := slices.IndexFunc(pending, func(o *entry) bool { return o.id == r.Id && !o.accepted })
	if i < 0 {
		return
	}
	e, ref := pending[i], t.ref()
	have := b.get(ref)
	if r.Accepted {
		m.counters.accepted.Add(1)
		b.after(func() { m.counters.lastAccepted.Store(time.Now().UnixMilli()) })
		keep := have != nil && e.laid() && (e.uid == "" || e.uid == have.shown.UID) &&
			(e.verb == topicpb.Verb_DELETE || (r.ResourceVersion != "" && object.Older(have.shown.CloudVersion, r.ResourceVersion)))
		if keep {
			next := *e
			next.accepted, next.acceptedVersion, next.acceptedEpoch = true, r.ResourceVersion, m.link.Epoch
			b.replace(t, &next)
			return
		}
		b.remove(t, func(o *entry) bool { return o.id == r.Id })
		if have != nil && e.laid() {
			b.reapply(ref)
		}
		return
	}
	st := &metav1.Status{}
	if err := json.Unmarshal(r.Status, st); err != nil {
		st = &metav1.Status{Message: "refused without a reason"}
	}
	m.counters.refused.Add(1)
	gone := have == nil && (st.Reason == metav1.StatusReasonNotFound || st.Reason == metav1.StatusReasonConflict)
	level := 0
	if gone { // that a status came too late for its pod is everyday
		level = 4
	}
	log.V(level).Info("The cloud refused a write for good", "object", ref, "verb", e.verb, "subresource", e.subresource, "reason", st.Reason, "why", st.Message)
	b.remove(t, func(o *entry) bool { return o.id == r.Id })
	if e.laid() {
		b.reapply(ref)
	}
	if !gone {
		m.tellRefused(b, ref, e, st)
	}
}

// finish lets the next write of the target go. Called with the lock held, after the result is on the disk.
func (m *Manager) finish(id uint64) {
	t, known := m.outbox.targets[id]
	m.outbox.ended(id)
	if !known {
		return
	}
	if q := m.outbox.queues[t]; q != nil {
		m.outbox.offer(q)
	}
}
