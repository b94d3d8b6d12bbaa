package kube

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// ObjectWatches watch single objects, each with one watch for all the nodes that need it, opened as
// one of them: cloudcore itself has no right to read a Secret or a ConfigMap. Every other node that
// shares the watch is reviewed on its own. A watch begins with the whole state of its object, so
// one that was opened again after a break needs no history, and a cluster that was restored from a
// backup is noticed.
type ObjectWatches struct {
	client  *Client
	access  *Access
	catalog *catalog
	rest    *rest.RESTClient
	review  chan struct{}
	opening chan struct{}
	plain   plainMode
	says    atomic.Bool // a watch has said when its initial events were at their end

	mu      sync.Mutex
	ctx     context.Context // of Run; nil while it doesn't run
	wg      sync.WaitGroup
	objects map[Ref]*watchedObject
}

// plainMode is set once a kube-apiserver without the streaming list (KEP-3157) was met: objects are
// read after each opening of a watch then.
type plainMode struct{ atomic.Bool }

func (w *ObjectWatches) request(ref Ref, node types.NodeName) *rest.Request {
	r := w.rest.Get().Resource(ref.Resource.Resource).Namespace(ref.Namespace).SetHeader("Impersonate-User", NodeUser(node))
	if w.client.mode == Classic {
		r = r.SetHeader("Impersonate-Group", nodeGroups()...)
	}
	return r
}

// get reads the object as the node, consistently.
func (w *ObjectWatches) get(ctx context.Context, ref Ref, node types.NodeName) (runtime.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	o, err := w.request(ref, node).Name(ref.Name).Do(ctx).Get()
	w.client.revisions.Failed(err)
	return o, err
}

// absentAsOf reads, as the node and consistently, that there is no such object; it returns the
// version as of which that is so, or the object if it exists by now.
func (w *ObjectWatches) absentAsOf(ctx context.Context, ref Ref, node types.NodeName) (o runtime.Object, version uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	options := &metav1.ListOptions{FieldSelector: byName(ref)}
	list, err := w.request(ref, node).VersionedParams(options, scheme.ParameterCodec).Do(ctx).Get()
	w.client.revisions.Failed(err)
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

// read makes what is known what a consistent read says, unless the watch has brought something
// newer meanwhile.
func (w *ObjectWatches) read(ctx context.Context, s *watchedObject, node types.NodeName) error {
	s.mu.Lock()
	before, known, had := s.generation, s.known, s.object
	s.mu.Unlock()
	o, err := w.get(ctx, s.ref, node)
	version := versionOf(o)
	if apierrors.IsNotFound(err) {
		if o, version, err = w.absentAsOf(ctx, s.ref, node); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	var encoded *Object
	if o != nil {
		if encoded, err = w.catalog.encoder(s.ref.Resource).encode(o); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.generation != before && s.asOf > version {
		return nil
	}
	if known && had != nil && s.generation == before && version < parseVersion(had.Revision) {
		// What was read is older than what was known before it was read: the cluster went back, and
		// the watch waits for versions that are lost.
		s.asOf = version
		if s.cancel != nil {
			s.cancel()
		}
		w.client.revisions.check()
	}
	s.asOf, s.floor = max(s.asOf, version), version
	s.set(encoded)
	return nil
}
