package meta

import (
	"context"
	"errors"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/edge/internal/meta/reply"
	"github.com/skerry-io/skerry/edge/internal/object"
)

// Get returns one object. NotFound is certain: it is only said where the set that the object would be in was delivered. ErrPassThrough: ask the
// cloud. Anything else that can't be answered here is a 503.
func (m *Manager) Get(ctx context.Context, ref object.Ref, caller Caller) (object.Object, error) {
	if o, ours, err := m.lease.Get(ref); ours {
		return o, err
	}
	s := object.Selection{Resource: ref.Resource, Namespace: ref.Namespace, Fields: fields.OneTermEqualSelector("metadata.name", ref.Name)}
	m.mu.RLock()
	if !m.running {
		m.mu.RUnlock()
		return object.Object{}, reply.From(reply.ErrStopped)
	}
	var h *held
	if t := m.tables[ref.Resource]; t != nil {
		h = t.objects[key{ref.Namespace, ref.Name}]
	}
	// What is held is current: some interest matches it, or the cloud would have taken it back.
	known := h != nil || m.answerable(s) || (caller.Kubelet && ref.Resource == podsResource && m.answerable(m.ownPods()))
	linked := m.linked
	m.mu.RUnlock()
	if known {
		if h.visible() == nil {
			return object.Object{}, reply.NotFound(ref)
		}
		return h.shown, nil
	}
	// What the kubelet reads one by one it will need after a reboot without a link, too.
	if caller.Kubelet && keptForKubelet(ref.Resource) {
		own := ref.Name == m.config.NodeName && ref.Namespace == ""
		if err := m.want(ctx, s, own); err != nil && !linked {
			return object.Object{}, reply.From(err)
		}
	}
	if linked {
		return object.Object{}, ErrPassThrough
	}
	return object.Object{}, reply.Offline("this node does not hold " + ref.String())
}

func keptForKubelet(r schema.GroupVersionResource) bool {
	switch r.GroupResource().String() {
	case "csinodes.storage.k8s.io", "persistentvolumes", "persistentvolumeclaims", "nodes":
		return true
	}
	return false
}

// List returns what is selected, in the order of namespace and name, and the version that the list is of. The objects' bytes are shared: don't
// change them. ErrPassThrough: ask the cloud.
func (m *Manager) List(ctx context.Context, s object.Selection, options ListOptions) (items []object.Object, version uint64, err error) {
	var hs []*held
	take := func(*interest) error { hs, version = m.snapshot(s), m.version; return nil }
	switch {
	case options.Held:
		err = m.takeHeld(s, take)
	case options.FromReflector:
		err = m.hold(ctx, s, options.Caller, take)
	default:
		err = m.takeNow(s, take)
	}
	if err != nil {
		return nil, 0, err
	}
	items = make([]object.Object, 0, len(hs))
	for _, h := range hs {
		ok, err := s.Matches(h.shown)
		if err != nil {
			return nil, 0, selectorError(err)
		}
		if ok {
			items = append(items, h.shown)
		}
	}
	slices.SortFunc(items, func(a, b object.Object) int { return key{a.Namespace, a.Name}.compare(key{b.Namespace, b.Name}) })
	return items, version, nil
}

// takeNow takes from the view what can be answered at once.
func (m *Manager) takeNow(s object.Selection, take func(*interest) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !m.running:
		return reply.From(reply.ErrStopped)
	case m.answerable(s):
		i := m.covering(s)
		if i != nil {
			i.idle = 0
		}
		return take(i)
	case m.linked:
		return ErrPassThrough
	}
	return reply.Offline("this node does not hold " + s.String())
}

// takeHeld takes from the view what there is.
func (m *Manager) takeHeld(s object.Selection, take func(*interest) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !m.running:
		return reply.From(reply.ErrStopped)
	case !m.someSet(s.Resource):
		return reply.Unavailable("this node does not hold any "+s.Resource.GroupResource().String(), 5)
	}
	return take(nil)
}

func selectorError(err error) error {
	if f := (*object.FieldError)(nil); errors.As(err, &f) {
		return apierrors.NewBadRequest(err.Error())
	}
	return apierrors.NewInternalError(err)
}
