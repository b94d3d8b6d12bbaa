package kube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// objectReader reads and watches single objects as the nodes that need them, and encodes them. It
// keeps no objects, and may be used by many goroutines.
type objectReader struct {
	client  *Client
	catalog *catalog
	rest    *rest.RESTClient
	opening chan struct{} // bounds the watches that are being opened
	// plain is set once a kube-apiserver without the streaming list (KEP-3157) was met: objects are
	// read after each opening of a watch then.
	plain atomic.Bool
}

func (r *objectReader) request(ref Ref, node types.NodeName) *rest.Request {
	q := r.rest.Get().Resource(ref.Resource.Resource).Namespace(ref.Namespace).SetHeader("Impersonate-User", NodeUser(node))
	if r.client.mode == Classic {
		q = q.SetHeader("Impersonate-Group", nodeGroups()...)
	}
	return q
}

// get reads the object as the node, consistently.
func (r *objectReader) get(ctx context.Context, ref Ref, node types.NodeName) (runtime.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	o, err := r.request(ref, node).Name(ref.Name).Do(ctx).Get()
	r.client.revisions.Failed(err)
	return o, err
}

// current reads the object as the node, consistently, and returns it with its version. An object
// that does not exist is nil, with the version as of which that is so.
func (r *objectReader) current(ctx context.Context, ref Ref, node types.NodeName) (*Object, uint64, error) {
	o, err := r.get(ctx, ref, node)
	version := versionOf(o)
	if apierrors.IsNotFound(err) {
		o, version, err = r.absentAsOf(ctx, ref, node)
	}
	if err != nil {
		return nil, 0, err
	}
	encoded, err := r.encode(ref, o)
	return encoded, version, err
}

// refresh updates an object by a consistent read as the node.
func (r *objectReader) refresh(ctx context.Context, s *watchedObject, node types.NodeName) error {
	before := s.snapshot()
	o, version, err := r.current(ctx, s.ref, node)
	if err != nil {
		return err
	}
	if s.refreshed(before, version, o) {
		r.client.revisions.check()
	}
	return nil
}

// absentAsOf reads, as the node and consistently, that there is no such object; it returns the
// version as of which that is so, or the object if it exists by now.
func (r *objectReader) absentAsOf(ctx context.Context, ref Ref, node types.NodeName) (o runtime.Object, version uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	options := &metav1.ListOptions{FieldSelector: byName(ref)}
	list, err := r.request(ref, node).VersionedParams(options, scheme.ParameterCodec).Do(ctx).Get()
	r.client.revisions.Failed(err)
	if err != nil {
		return nil, 0, err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return nil, 0, fmt.Errorf("reading %s: %w", ref.Key, err)
	}
	if len(items) > 0 {
		return items[0], versionOf(items[0]), nil
	}
	l, err := meta.ListAccessor(list)
	if err != nil {
		return nil, 0, fmt.Errorf("reading %s: %w", ref.Key, err)
	}
	return nil, parseVersion(l.GetResourceVersion()), nil
}

func byName(ref Ref) string {
	return fields.OneTermEqualSelector("metadata.name", ref.Name).String()
}

// encode returns an object as the edge gets it; nil for nil.
func (r *objectReader) encode(ref Ref, o runtime.Object) (*Object, error) {
	if o == nil {
		return nil, nil // nolint:nilnil // absence is no error
	}
	return r.catalog.encoder(ref.Resource).encode(o)
}

// watch opens the watch of an object as a node. It begins with the object, or with the end of
// initial events if the object is absent.
func (r *objectReader) watch(ctx context.Context, ref Ref, node types.NodeName) (watch.Interface, error) {
	select {
	case r.opening <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-r.opening }()
	timeout := int64(1800 + rand.IntN(1800))
	options := &metav1.ListOptions{
		FieldSelector: byName(ref), Watch: true, AllowWatchBookmarks: true, ResourceVersion: "0", TimeoutSeconds: &timeout,
	}
	if !r.plain.Load() {
		options.SendInitialEvents, options.ResourceVersionMatch = new(true), metav1.ResourceVersionMatchNotOlderThan
	}
	events, err := openWatch(ctx, func(ctx context.Context) (watch.Interface, error) {
		return r.request(ref, node).VersionedParams(options, scheme.ParameterCodec).Watch(ctx)
	})
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
		r.plain.Store(true)
	}
	r.client.revisions.Failed(err)
	return events, err
}
