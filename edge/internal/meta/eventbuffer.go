package meta

import (
	"context"
	"sync"

	"github.com/skerry-io/skerry/edge/internal/store"
	"github.com/skerry-io/skerry/edge/internal/store/storepb"
)

// ring is the newest events of this device, as the edge API shows them. In memory it is always right; on the disk it is some time behind, for it is
// there to look at after a restart. What must reach the cloud is in the outbox.
type ring struct {
	order []key // oldest first; owned by the core
	bytes int   // owned by the core

	mu    sync.Mutex // guards what follows
	dirty map[key]*storepb.Event
}

type ringRecord struct {
	key     key
	version uint64
	raw     []byte
}

func newRing() *ring { return &ring{dirty: map[key]*storepb.Event{}} }

// flush writes what has changed since the last time; nothing when nothing has.
func (r *ring) flush(ctx context.Context, s *store.Store) error {
	r.mu.Lock()
	dirty := r.dirty
	r.dirty = map[key]*storepb.Event{}
	r.mu.Unlock()
	if len(dirty) == 0 {
		return nil
	}
	err := s.Update(ctx, func(tx *store.Tx) error {
		for k, e := range dirty {
			if e == nil {
				if err := tx.DeleteEvent(k.namespace, k.name); err != nil {
					return err
				}
			} else if err := tx.PutEvent(k.namespace, k.name, e); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		for k, e := range dirty {
			if _, newer := r.dirty[k]; !newer {
				r.dirty[k] = e
			}
		}
	}
	return err
}

func (r *ring) mark(k key, e *storepb.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dirty[k] = e
}
