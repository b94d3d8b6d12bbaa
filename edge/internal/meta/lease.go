package meta

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/skerry-io/skerry/edge/internal/meta/reply"
	"github.com/skerry-io/skerry/edge/internal/object"
)

// lease is the kubelet's Lease, answered here: the cloud renews the real one for as long as the link says that the kubelet lives. It is never
// stored and never sent.
type lease struct {
	node string // set once

	mu       sync.Mutex // guards what follows
	object   *object.Object
	renewed  time.Time // with the monotonic clock: a wall clock that jumps makes nobody dead
	duration time.Duration
}

var leasesResource = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}

func (l *lease) is(ref object.Ref) bool {
	return ref.Resource == leasesResource && ref.Namespace == corev1.NamespaceNodeLease && (ref.Name == l.node || ref.Name == "")
}

func (l *lease) get(ref object.Ref) (o object.Object, ours bool, err error) {
	if !l.is(ref) || ref.Name == "" {
		return object.Object{}, false, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.object == nil {
		return object.Object{}, true, reply.NotFound(ref)
	}
	return *l.object, true, nil
}

func (l *lease) alive(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.object != nil && !l.renewed.IsZero() && now.Sub(l.renewed) < l.duration
}

// write takes a write of the Lease. Its version comes from the store's counter like every other, but is not written down: see versionGap.
func (l *lease) write(w Write, version uint64) (Result, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := object.Ref{Resource: leasesResource, Namespace: corev1.NamespaceNodeLease, Name: l.node}
	if w.Verb == "delete" {
		if l.object == nil {
			return Result{}, reply.NotFound(name)
		}
		l.object = nil
		return Result{Code: http.StatusOK, Status: reply.Success()}, nil
	}
	next, err := l.next(w, name)
	if err != nil {
		return Result{}, err
	}
	code := http.StatusOK
	if l.object == nil {
		code = http.StatusCreated
		next.UID, next.CreationTimestamp = uuid.NewUUID(), metav1.Now()
	} else {
		next.UID = l.object.UID
	}
	next.Name, next.Namespace, next.ResourceVersion = name.Name, name.Namespace, strconv.FormatUint(version, 10)
	o, err := object.FromObject(leasesResource, next)
	if err != nil {
		return Result{}, apierrors.NewInternalError(err)
	}
	o.Version, o.CloudVersion = version, ""
	l.object = &o
	if w.Caller.Kubelet {
		l.renewed = time.Now()
		l.duration = 40 * time.Second // the kubelet's default; see nodeLeaseDurationSeconds
		if d := next.Spec.LeaseDurationSeconds; d != nil && *d > 0 {
			l.duration = time.Duration(*d) * time.Second
		}
	}
	return Result{Code: code, Object: &o}, nil
}

// next is the Lease as the write would have it.
func (l *lease) next(w Write, name object.Ref) (*coordinationv1.Lease, error) {
	if w.Verb == "patch" {
		if l.object == nil {
			return nil, reply.NotFound(name)
		}
		now, err := object.Decode(*l.object)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		patched, err := object.Patch(now, w.PatchType, w.Body)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		return asLease(patched)
	}
	obj, err := object.DecodeRaw(w.Body)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	next, err := asLease(obj)
	if err != nil {
		return nil, err
	}
	if next.Name != name.Name {
		return nil, apierrors.NewForbidden(leasesResource.GroupResource(), next.Name, nil)
	}
	switch {
	case w.Verb == "create" && l.object != nil:
		return nil, apierrors.NewAlreadyExists(leasesResource.GroupResource(), name.Name)
	case w.Verb == "update" && l.object == nil:
		return nil, reply.NotFound(name)
	case w.Verb == "update" && next.ResourceVersion != "" && next.ResourceVersion != strconv.FormatUint(l.object.Version, 10):
		return nil, reply.Conflict(name, "the object has been modified; please apply your changes to the latest version and try again")
	}
	return next, nil
}

func asLease(obj runtime.Object) (*coordinationv1.Lease, error) {
	l, ok := obj.(*coordinationv1.Lease)
	if !ok {
		return nil, apierrors.NewBadRequest("the object is no Lease")
	}
	return l, nil
}
