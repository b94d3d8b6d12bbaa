package metamanager

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager/event"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/outbox"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/token"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/view"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// load reads the store into the view, the outbox and the other caches. An earlier run of this
// process may have left its state in them.
func (m *Manager) load(ctx context.Context) error {
	log := klog.FromContext(ctx)
	var stored *view.Stored
	var waiting *outbox.Stored
	var tokens token.Stored
	var shown, waitingEvents []event.Stored
	if err := m.config.Store.View(func(tx *store.Tx) (err error) {
		if waiting, err = outbox.Read(tx, func(ref object.Ref, body []byte) {
			waitingEvents = append(waitingEvents, event.Stored{Ref: ref, Raw: body})
		}); err != nil {
			return err
		}
		if tokens, err = token.Read(tx); err != nil {
			return err
		}
		if shown, err = event.Read(tx); err != nil {
			return err
		}
		stored, err = view.Read(tx)
		return err
	}); err != nil {
		return err
	}
	m.inbox.reset()
	m.sender.Reset()
	m.outbox.Restore(waiting)
	m.tokens.Restore(tokens)
	write, needed := m.view.Restore(stored, func(o object.Object) *view.Held {
		obj, err := object.DecodeRaw(o.Raw)
		if err != nil {
			log.Error(err, "Failed to decode an object in the store, skipping it", "object", o.Ref)
			return nil
		}
		entries := m.outbox.Entries(o.Ref)
		h := m.showing().overlay(view.NewHeld(o, obj), obj, entries)
		for _, e := range entries {
			h.Shown.Version = max(h.Shown.Version, e.ShownVersion)
		}
		return h
	})
	m.events.Forget()
	for _, e := range shown {
		o, err := object.FromRaw(view.Events, e.Raw)
		if err != nil {
			log.Error(err, "Failed to decode an event in the store, skipping it", "event", e.Ref)
			continue
		}
		m.restoreEvent(o, e.Ref, e.Version)
	}
	for _, e := range waitingEvents { // they may be newer
		obj, err := object.DecodeRaw(e.Raw)
		if err != nil {
			continue
		}
		if o, err := object.FromObject(view.Events, obj); err == nil {
			m.restoreEvent(o, e.Ref, m.view.Version())
		}
	}
	err := m.config.Store.Update(ctx, write)
	if err != nil && !needed {
		log.Error(err, "Failed to write to the store, running from memory")
		return nil
	}
	return err
}

func (m *Manager) restoreEvent(o object.Object, ref object.Ref, version uint64) {
	o.Ref, o.Version, o.CloudVersion = ref, version, ""
	before := -1
	if old := m.view.RestoreEvent(o); old != nil {
		before = len(old.Shown.Raw)
	}
	m.events.Restore(ref, before, len(o.Raw))
}
