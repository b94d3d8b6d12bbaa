package kube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

func (w *Singles) request(ref Ref, node types.NodeName) *rest.Request {
	r := w.rest.Get().Resource(ref.Resource.Resource).Namespace(ref.Namespace).SetHeader("Impersonate-User", NodeUser(node))
	if w.client.mode == Classic {
		r = r.SetHeader("Impersonate-Group", nodeGroups()...)
	}
	return r
}

// stream follows the object as m until the watch ends. The watch is opened first and the object is asked for after that, where the watch
// hasn't told of it already: so no deletion falls between the two.
func (w *Singles) stream(ctx context.Context, s *single, m *member) error {
	s.mu.Lock()
	version, known := s.version, s.known
	s.mu.Unlock()
	if !known || version == "" {
		version = "0"
	}
	timeout := int64(1800 + rand.IntN(1800))
	options := &metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", s.ref.Name).String(), Watch: true, AllowWatchBookmarks: true,
		ResourceVersion: version, TimeoutSeconds: &timeout,
	}
	events, err := w.request(s.ref, m.node).VersionedParams(options, scheme.ParameterCodec).Watch(ctx)
	if err != nil {
		return s.restart(err)
	}
	defer events.Stop()
	s.mu.Lock()
	if !m.left {
		s.grant(m)
	}
	s.mu.Unlock()
	var floor uint64 // what the watch tells of versions up to this one is old news: the cache behind it was late
	if version == "0" {
		if floor, err = w.first(ctx, s, m, events); err != nil {
			return err
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-events.ResultChan():
			if !ok {
				return nil
			}
			if floor > 0 && e.Type != watch.Error && versionOf(e.Object) <= floor {
				continue
			}
			if err := w.apply(s, e); err != nil {
				return err
			}
		}
	}
}

// versionOf is an object's resource version as a number, 0 where it is none. kube-apiserver's are numbers that grow (KEP-5504).
func versionOf(o runtime.Object) uint64 {
	m, err := metaOf(o)
	if err != nil {
		return 0
	}
	v, err := strconv.ParseUint(m.GetResourceVersion(), 10, 64)
	if err != nil {
		return 0
	}
	return v
}

// first establishes whether the object exists. Where it had to be asked for, its version is returned.
func (w *Singles) first(ctx context.Context, s *single, m *member, events watch.Interface) (floor uint64, err error) {
	t := time.NewTimer(firstEvent)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return 0, nil
	case e, ok := <-events.ResultChan():
		if !ok {
			return 0, nil
		}
		if err := w.apply(s, e); err != nil {
			return 0, err
		}
		if e.Type != watch.Bookmark {
			return 0, nil
		}
	case <-t.C:
	}
	o, err := w.request(s.ref, m.node).Name(s.ref.Name).Do(ctx).Get()
	switch {
	case apierrors.IsNotFound(err):
		s.mu.Lock()
		s.set(nil)
		s.mu.Unlock()
		return 0, nil
	case err != nil:
		return 0, err
	}
	floor = versionOf(o)
	return floor, w.put(s, o)
}

func (w *Singles) apply(s *single, e watch.Event) error {
	switch e.Type {
	case watch.Added, watch.Modified:
		return w.put(s, e.Object)
	case watch.Deleted, watch.Bookmark:
		m, err := metaOf(e.Object)
		if err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.version = m.GetResourceVersion()
		if e.Type == watch.Deleted {
			s.set(nil)
		}
		return nil
	case watch.Error:
		return s.restart(apierrors.FromObject(e.Object))
	}
	return nil
}

func (w *Singles) put(s *single, o runtime.Object) error {
	m, err := metaOf(o)
	if err != nil {
		return err
	}
	version := m.GetResourceVersion()
	encoded, err := w.catalog.encoder(s.ref.Resource).encode(o)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = version
	s.set(encoded)
	return nil
}

// restart forgets where to go on from, when kube-apiserver doesn't know that any more.
func (s *single) restart(err error) error {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.IsBadRequest(err) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) { // a cluster that was restored from a backup
		s.mu.Lock()
		s.version = ""
		s.mu.Unlock()
	}
	return err
}

func metaOf(o runtime.Object) (metav1.Object, error) {
	a, ok := o.(metav1.ObjectMetaAccessor)
	if !ok {
		return nil, fmt.Errorf("unexpected %T", o)
	}
	return a.GetObjectMeta(), nil
}
