package metamanager

import (
	"bytes"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager/outbox"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/podgate"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/podrestart"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/token"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/view"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// proposal is one change on its way through the core.
type proposal struct {
	do   func(*batch) error
	done chan error // one slot
}

// batch is a set of changes that are worked out but not yet shown. Owned by the core.
type batch struct {
	view   *view.Batch
	outbox *outbox.Batch
	tokens *token.Keeper
	show   showing
	writes []func(*store.Tx) error
	afters []func()
}

// showing builds the visible object from the cached one.
type showing struct {
	corrector object.Corrector
	gate      podgate.Gate
}

// overlay returns the visible form of a delivered object: with the pending writes applied,
// corrected, and withheld from the kubelet if the gate decides so. decoded is the delivered object,
// nil if the caller has only its bytes.
func (s showing) overlay(h *view.Held, decoded runtime.Object, entries []*outbox.Entry) *view.Held {
	delivered := h.Delivered()
	shown, hidden := outbox.Overlay(delivered, entries)
	if !bytes.Equal(shown.Raw, delivered.Raw) {
		decoded = nil // of other bytes
	}
	if c := s.corrector; c != nil && c.Corrects(shown.Resource) {
		shown.Raw = c.Correct(shown, decoded)
	}
	return h.With(shown, hidden).Withhold(s.withholds(shown, decoded, entries))
}

// withholds returns why the kubelet is not to see an object, or "" if it is. A pod that this device
// ended without reporting it to the cloud waits to run again, regardless of the gate's rules.
func (s showing) withholds(shown object.Object, decoded runtime.Object, entries []*outbox.Entry) (reason string) {
	if shown.Resource != view.Pods {
		return ""
	}
	ended := outbox.LocalOf(entries, shown.UID) != nil
	if len(s.gate) == 0 && !ended {
		return ""
	}
	if decoded == nil {
		var err error
		if decoded, err = object.DecodeRaw(shown.Raw); err != nil {
			return "" // each client finds out by itself
		}
	}
	pod, ok := decoded.(*corev1.Pod)
	switch {
	case !ok:
		return ""
	case ended && pod.DeletionTimestamp == nil:
		return podrestart.Withheld(pod)
	}
	return s.gate.Withholds(pod)
}

// decoded returns the decoded visible object, the zero value if there is no object.
func decoded[T runtime.Object](h *view.Held) (none T) {
	if h == nil {
		return none
	}
	obj, err := object.DecodeRaw(h.Shown.Raw)
	if err != nil {
		return none
	}
	t, _ := obj.(T)
	return t
}

// Save adds a write to the store.
func (b *batch) Save(do func(*store.Tx) error) { b.writes = append(b.writes, do) }

// After adds a function that runs under the view's lock once the batch is on disk.
func (b *batch) After(do func()) { b.afters = append(b.afters, do) }

// toWrite reports whether there are writes for the disk.
func (b *batch) toWrite() bool { return len(b.writes) > 0 || b.view.Writes() || b.outbox.Writes() }

func (b *batch) write(tx *store.Tx) error {
	for _, w := range b.writes {
		if err := w(tx); err != nil {
			return err
		}
	}
	if err := b.outbox.Write(tx); err != nil {
		return err
	}
	return b.view.Write(tx)
}

// forget stages that an object is no longer held. Its pending writes stay: the relay reports their
// outcome.
func (b *batch) forget(ref object.Ref) {
	b.outbox.Remove(ref, func(e *outbox.Entry) bool { return e.Accepted })
	have := b.view.Get(ref)
	if have == nil {
		return
	}
	b.view.Set(ref, nil)
	b.view.SaveDeletion(ref)
	if ref.Resource == view.Pods {
		b.tokens.Forget(b, have.Shown.UID)
	}
}

// reapply shows an object again after its writes have changed. Its stored record stays: that is the
// delivered object.
func (b *batch) reapply(ref object.Ref) {
	have := b.view.Get(ref)
	if have == nil {
		return
	}
	h := b.show.overlay(have, nil, b.outbox.Pending(ref))
	if h.Hidden() == have.Hidden() && h.Withheld() == have.Withheld() && bytes.Equal(h.Shown.Raw, have.Shown.Raw) {
		return
	}
	b.view.Set(ref, h)
}
