package meta

import (
	"bytes"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/edge/internal/object"
	"github.com/skerry-io/skerry/edge/internal/store"
)

// forget stages that an object is no longer held. Writes that wait for it stay: the relay says what became of them.
func (b *batch) forget(ref object.Ref) { b.forgetHeld(ref, b.get(ref)) }

func (b *batch) forgetHeld(ref object.Ref, have *held) {
	b.remove(targetOf(ref), func(e *entry) bool { return e.accepted })
	if have == nil {
		return
	}
	b.set(ref, nil)
	b.saveDeletion(ref)
	if ref.Resource == podsResource {
		b.forgetAnswers(have.shown.UID)
	}
}

// overlay is overlay, and what the Corrector makes of it.
func (m *Manager) overlay(delivered object.Object, uses []dependency, entries []*entry) *held {
	h := overlay(delivered, uses, entries)
	if c := m.config.Corrector; c != nil && c.Corrects(delivered.Resource) {
		h.shown.Raw = c.Correct(h.shown)
	}
	return h
}

// reapply shows an object anew after its writes have changed. Its record stays: that is what the cloud delivered.
func (b *batch) reapply(ref object.Ref) {
	have := b.get(ref)
	if have == nil {
		return
	}
	h := b.m.overlay(have.delivered(), have.uses, b.pending(targetOf(ref)))
	if h.hidden == have.hidden && bytes.Equal(h.shown.Raw, have.shown.Raw) {
		return
	}
	b.set(ref, h)
}

// release ends, once the set is granted and delivered again, what was retained and did not come again.
func (b *batch) release() {
	for k := range b.retain() {
		b.forget(object.Ref{Resource: podsResource, Namespace: k.namespace, Name: k.name})
	}
	clear(b.retained)
}

// forgetAnswers stages the end of the answers that were bound to an object.
func (b *batch) forgetAnswers(uid types.UID) {
	if uid == "" {
		return
	}
	for k, a := range b.m.answers {
		if a.bound == uid {
			b.save(func(tx *store.Tx) error { return tx.DeleteAnswer([]byte(k)) })
			b.after(func() { delete(b.m.answers, k) })
		}
	}
}
