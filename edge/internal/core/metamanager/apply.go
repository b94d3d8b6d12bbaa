package metamanager

import (
	"cmp"
	"encoding/json"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/outbox"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/reply"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/view"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// maxMismatches is how many resources a cloud can be mistaken about in one session; beyond,
// it is believed.
const maxMismatches = 1024

// applyState stages the changes of a State, and records in digestMismatches the digests that differ
// from the expected ones.
func (m *Manager) applyState(b *batch, s *topicpb.State, found digestMismatches, log klog.Logger) {
	m.applyRefusals(b, s, log) // first: objects withdrawn because of a refusal come with it or after it
	for _, changes := range s.Changes {
		resource := view.ResourceOf(changes.Resource)
		for _, c := range changes.Items {
			ref := object.Ref{Resource: resource, Namespace: c.Namespace, Name: c.Name}
			if c.Deleted {
				if c.Name == "" {
					m.counters.malformed.Add(1)
					log.Error(nil, "Skipped a deletion without a name from the cloud", "object", ref)
					continue
				}
				b.view.Gone(resource, c.ResourceVersion)
				if resource == view.Pods && b.view.KeepsPods() {
					b.view.Retain(ref)
					continue
				}
				b.forget(ref)
				continue
			}
			if err := m.applyObject(b, ref, c); err != nil {
				m.counters.malformed.Add(1)
				log.Error(err, "Failed to decode an object from the cloud, skipping it", "object", object.Describe(ref, c.Object))
			}
		}
	}
	for _, e := range s.Expected {
		resource := view.ResourceOf(e.GetResource())
		if !found.reported[resource] && len(found.reported) < maxMismatches && !b.view.Expects(e) {
			found.reported[resource], found.open[resource] = true, true
			log.V(2).Info("Digest mismatch with the cloud", "resource", resource)
		} else {
			delete(found.open, resource)
		}
	}
	for _, id := range s.Synced {
		i := b.view.Interest(id)
		if i == nil || found.concern(i) {
			continue
		}
		m.dropAccepted(b, i)
		if b.view.OwnPods(i) { // granted and delivered again: retained objects that were not delivered again are gone
			for _, ref := range b.view.TakeRetained() {
				b.forget(ref)
			}
			if confirmed := m.config.PodsConfirmed; confirmed != nil {
				b.After(confirmed)
			}
		}
		b.view.Synced(id)
	}
}

// applyRefusals stages the interests that the cloud refuses.
func (m *Manager) applyRefusals(b *batch, s *topicpb.State, log klog.Logger) {
	for _, r := range s.Refused {
		st := &metav1.Status{}
		if err := json.Unmarshal(r.Status, st); err != nil || st.Code < 400 {
			st = &reply.Status(403, metav1.StatusReasonForbidden, "kube-apiserver does not allow this node to have this", 0).ErrStatus
		}
		if i := b.view.Refuse(r.Interest, st); i != nil {
			log.Info("Cloud refused a set of objects", "resource", i.Resource, "namespace", i.Namespace, "fields", i.Fields, "reason", st.Message)
		}
	}
}

// applyObject stages the newest state of one object. ref names it, or only its resource: then
// namespace and name are taken from the object (Interests.unnamed).
func (m *Manager) applyObject(b *batch, ref object.Ref, c *topicpb.Change) error {
	obj, err := object.DecodeRaw(c.Object)
	if err != nil {
		return err
	}
	o, err := object.FromDecoded(ref, obj, c.Object)
	if err != nil {
		return err
	}
	ref = o.Ref
	uid, version := cmp.Or(types.UID(c.Uid), o.UID), cmp.Or(c.ResourceVersion, o.CloudVersion)
	have := b.view.Get(ref)
	if ref.Resource == view.Pods {
		b.view.Unretain(ref)
	}
	if have != nil && have.Shown.UID == uid && have.Shown.CloudVersion == version {
		return nil // delivered again: no change that a client could see
	}
	o.UID, o.CloudVersion = uid, version
	// A write that the cloud accepted is part of the delivered object, or was undone there.
	b.outbox.Remove(ref, func(e *outbox.Entry) bool {
		if !e.Accepted {
			return false
		}
		return (e.UID != "" && e.UID != o.UID) || (e.Verb == topicpb.Verb_PATCH && !object.Older(o.CloudVersion, e.AcceptedVersion))
	})
	h := b.view.Set(ref, b.show.overlay(view.NewHeld(o, obj), obj, b.outbox.Pending(ref)))
	if have != nil && ref.Resource == view.Nodes {
		if before, err := object.DecodeRaw(have.Delivered().Raw); err == nil && object.OnlyHeartbeat(before, obj) {
			return nil // not worth a write: should we restart now, the cloud sends it once more
		}
	}
	b.view.Save(h)
	return nil
}

// dropAccepted drops writes to an interest's objects that were accepted in earlier sessions: the
// whole set has now been delivered from a copy that included those writes (Digest.Written), so it
// equals the cloud's state.
func (m *Manager) dropAccepted(b *batch, i *view.Interest) {
	link, _ := b.view.Link()
	for _, ref := range m.outbox.Refs() {
		if !i.Has(ref) {
			continue
		}
		if b.outbox.Remove(ref, func(e *outbox.Entry) bool { return e.Accepted && e.AcceptedEpoch < link.Epoch }) > 0 {
			b.reapply(ref)
		}
	}
}

// wentBack reports whether the cluster has gone back in time since it delivered the cached object:
// a write sent after that delivery was accepted at an older version. The cached object is then
// newer by its version alone. If another object was delivered since the write was sent, only the
// versions can be compared: its watch may have been quicker than the result.
func (m *Manager) wentBack(have *view.Held, r *topicpb.WriteResult) bool {
	held := have.Shown.CloudVersion
	return m.outbox.SentOver(r.Id) == held && object.Older(r.ResourceVersion, held)
}

// applyResult stages the end of a write.
func (m *Manager) applyResult(b *batch, r *topicpb.WriteResult, log klog.Logger) {
	ref, e := b.outbox.Waiting(r.Id)
	if e == nil {
		return
	}
	have := b.view.Get(ref)
	if r.Accepted {
		b.After(func() {
			m.counters.accepted.Add(1)
			m.counters.lastAccepted.Store(time.Now().UnixMilli())
		})
		overtakes := e.Laid() && b.outbox.Overtake(ref, e, r.ResourceVersion)
		keep := have != nil && e.Laid() && (e.UID == "" || e.UID == have.Shown.UID) &&
			(e.Verb == topicpb.Verb_DELETE || (r.ResourceVersion != "" &&
				(overtakes || m.wentBack(have, r) || object.Older(have.Shown.CloudVersion, r.ResourceVersion))))
		if keep {
			link, _ := b.view.Link()
			b.outbox.Accept(ref, e, r.ResourceVersion, link.Epoch)
			if overtakes {
				b.reapply(ref)
			}
			return
		}
		b.outbox.Remove(ref, func(o *outbox.Entry) bool { return o.ID == r.Id })
		if have != nil && e.Laid() {
			b.reapply(ref)
		}
		return
	}
	st := &metav1.Status{}
	if err := json.Unmarshal(r.Status, st); err != nil {
		st = &metav1.Status{Message: "refused without a reason"}
	}
	b.After(func() { m.counters.refused.Add(1) })
	gone := have == nil && (st.Reason == metav1.StatusReasonNotFound || st.Reason == metav1.StatusReasonConflict)
	level := 0
	if gone { // statuses that arrive too late for their pod are common
		level = 4
	}
	log.V(level).Info("Cloud rejected a write permanently", "object", ref, "verb", e.Verb, "subresource", e.Subresource, "reason", st.Reason, "why", st.Message)
	b.outbox.Remove(ref, func(o *outbox.Entry) bool { return o.ID == r.Id })
	if e.Laid() {
		b.reapply(ref)
	}
	if !gone {
		m.reportRefused(b, ref, e, st)
	}
}
