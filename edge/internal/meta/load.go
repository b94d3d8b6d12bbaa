package meta

import (
	"bytes"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/edge/internal/object"
	"github.com/skerry-io/skerry/edge/internal/store"
	"github.com/skerry-io/skerry/edge/internal/store/storepb"
)

func (m *Manager) readStore(tx *store.Tx, to readInto) error {
	for n, v := range map[store.Number]*uint64{
		store.Version: to.version, store.Entry: to.entries, store.Interest: to.interests, store.Dropped: to.dropped,
	} {
		var err error
		if *v, err = tx.Number(n); err != nil {
			return err
		}
	}
	if err := tx.Entries(func(id uint64, r *storepb.Entry) error {
		t, e := entryOf(id, r)
		to.boxes[t] = append(to.boxes[t], e)
		if e.event() {
			to.bodies[id] = r.Body
		}
		return nil
	}); err != nil {
		return err
	}
	if err := tx.Interests(func(id uint64, r *storepb.Interest) error {
		to.found[id] = interestOf(id, r)
		return nil
	}); err != nil {
		return err
	}
	if err := tx.Answers(func(k []byte, a *storepb.Answer) error {
		to.answers[string(k)] = answerInfo{at: a.UnixMillis, bound: types.UID(a.BoundUid)}
		return nil
	}); err != nil {
		return err
	}
	if err := tx.Events(func(namespace, name string, r *storepb.Event) error {
		*to.ringed = append(*to.ringed, ringRecord{key{namespace, name}, r.Version, bytes.Clone(r.Raw)})
		return nil
	}); err != nil {
		return err
	}
	return tx.Objects(func(ref object.Ref, r *storepb.Object) error {
		*to.objects = append(*to.objects, object.Object{
			Ref: ref, UID: types.UID(r.Uid), Labels: r.Labels, Version: r.Version, CloudVersion: r.CloudVersion, Raw: r.Raw,
		})
		return nil
	})
}

// take puts the entries of a target that were read from the store into the outbox.
func (o *outbox) take(t target, es []*entry) {
	o.queues[t] = &queue{entries: es}
	for _, e := range es {
		o.targets[e.id] = t
		o.last = max(o.last, e.id)
		if e.event() {
			o.events.entries++
			o.events.bytes += e.size
			if i, found := slices.BinarySearch(o.eventOrder, e.id); !found {
				o.eventOrder = slices.Insert(o.eventOrder, i, e.id)
			}
		}
	}
}
