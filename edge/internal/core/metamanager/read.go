package metamanager

import (
	"context"

	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// Get returns one object. NotFound is certain: it is only returned if the object's set was
// delivered. ErrPassThrough: ask the cloud. Any other failure is a 503.
func (m *Manager) Get(ctx context.Context, ref object.Ref, caller Caller) (object.Object, error) {
	if o, ours, err := m.lease.Get(ref); ours {
		return o, err
	}
	return m.view.Get(ctx, ref, caller)
}

// List returns the selected objects, ordered by namespace and name, and the version of the list.
// The objects' bytes are shared: don't change them. ErrPassThrough: ask the cloud.
func (m *Manager) List(ctx context.Context, s object.Selection, options ListOptions) (items []object.Object, version uint64, err error) {
	return m.view.List(ctx, s, options)
}

// Watch opens a watch, waiting until its selection is cached. It ends with ctx, with Stop, with the
// Manager, or with an Error event: 410 for a watcher that is too slow. A version that is too old or
// was not issued here is a 410 at once.
func (m *Manager) Watch(ctx context.Context, s object.Selection, options WatchOptions) (Watch, error) {
	return m.view.Watch(ctx, s, options)
}

// Covered reports whether the selection can be answered here and now, link or no link.
func (m *Manager) Covered(s object.Selection) bool { return m.view.Covered(s) }
