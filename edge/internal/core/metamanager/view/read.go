package view

import (
	"context"
	"errors"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager/reply"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/request"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// Get returns one object. NotFound is certain: it is only returned if the object's set was
// delivered. ErrPassThrough: ask the cloud. Any other failure is a 503.
func (v *View) Get(ctx context.Context, ref object.Ref, caller request.Caller) (object.Object, error) {
	s := object.Selection{Resource: ref.Resource, Namespace: ref.Namespace, Fields: fields.OneTermEqualSelector("metadata.name", ref.Name)}
	v.mu.RLock()
	if !v.running {
		v.mu.RUnlock()
		return object.Object{}, reply.From(reply.ErrStopped)
	}
	h := v.held(ref)
	// A cached object is current: some interest matches it, or the cloud would have withdrawn it.
	known := h != nil || v.answerable(s) || (caller.Kubelet && ref.Resource == Pods && v.answerable(v.ownPods()))
	linked := v.linked
	v.mu.RUnlock()
	if known {
		if h.Visible() == nil {
			return object.Object{}, reply.NotFound(ref)
		}
		return h.Shown, nil
	}
	// The kubelet will need the objects that it reads one by one after a reboot without a link,
	// too.
	if caller.Kubelet && keptForKubelet(ref.Resource) {
		own := ref.Name == v.config.Node && ref.Namespace == ""
		if err := v.config.Want(ctx, s, own); err != nil && !linked {
			return object.Object{}, reply.From(err)
		}
	}
	if linked {
		return object.Object{}, request.ErrPassThrough
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

// All returns the objects of a resource that are here, whether or not their set is whole: not for
// answers to clients.
func (v *View) All(resource schema.GroupVersionResource) []object.Object {
	v.mu.RLock()
	defer v.mu.RUnlock()
	var all []object.Object
	for _, h := range v.snapshot(object.Selection{Resource: resource, Labels: labels.Everything(), Fields: fields.Everything()}) {
		all = append(all, h.Shown)
	}
	return all
}

// List returns the selected objects, ordered by namespace and name, and the version of the list.
// The objects' bytes are shared: don't change them. ErrPassThrough: ask the cloud.
func (v *View) List(ctx context.Context, s object.Selection, options request.ListOptions) (items []object.Object, version uint64, err error) {
	var hs []*Held
	take := func(*Interest) error { hs, version = v.snapshot(s), v.version; return nil }
	switch {
	case options.Held:
		err = v.takeHeld(s, take)
	case options.FromReflector:
		err = v.hold(ctx, s, options.Caller, take)
	default:
		err = v.takeNow(s, take)
	}
	if err != nil {
		return nil, 0, err
	}
	items = make([]object.Object, 0, len(hs))
	for _, h := range hs {
		ok, err := s.Matches(h.Shown)
		if err != nil {
			return nil, 0, selectorError(err)
		}
		if ok && h.shownTo(options.Caller.Kubelet) {
			items = append(items, h.Shown)
		}
	}
	slices.SortFunc(items, func(a, b object.Object) int { return compareKeys(keyOf(a.Ref), keyOf(b.Ref)) })
	return items, version, nil
}

// takeNow takes from the view if the selection can be answered at once.
func (v *View) takeNow(s object.Selection, take func(*Interest) error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case !v.running:
		return reply.From(reply.ErrStopped)
	case v.answerable(s):
		i := v.covering(s)
		if i != nil {
			i.idle = 0
		}
		return take(i)
	case v.linked:
		return request.ErrPassThrough
	}
	return reply.Offline("this node does not hold " + s.String())
}

// takeHeld takes the cached objects from the view.
func (v *View) takeHeld(s object.Selection, take func(*Interest) error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case !v.running:
		return reply.From(reply.ErrStopped)
	case !v.someSet(s.Resource):
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
