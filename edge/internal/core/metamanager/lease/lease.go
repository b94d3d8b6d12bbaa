// Package lease is the kubelet's Lease, answered on the device: cloudcore renews the real one for
// as long as the link reports a live kubelet.
//
// It owns that one object, which is never stored and never sent. It refuses writes that
// kube-apiserver would refuse. All methods may be called by many goroutines at once.
package lease

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

	"github.com/skerry-io/skerry/edge/internal/core/metamanager/reply"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/request"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// Lease is the Lease of one node.
type Lease struct {
	node string // set by New, never changed

	mu       sync.Mutex // guards the fields below
	object   *object.Object
	renewed  time.Time // with the monotonic clock: a jump of the wall clock ends no Lease
	duration time.Duration
}

// New returns the Lease of a node, which does not exist until a kubelet creates it.
func New(node string) *Lease { return &Lease{node: node} }

// Resource is the resource of a Lease.
var Resource = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}

// Is reports whether a reference is to this Leaseor, for a create, has no name.
func (l *Lease) Is(ref object.Ref) bool {
	return ref.Resource == Resource && ref.Namespace == corev1.NamespaceNodeLease && (ref.Name == l.node || ref.Name == "")
}

// Get returns the Lease; ours is false if the reference is to another object.
func (l *Lease) Get(ref object.Ref) (o object.Object, ours bool, err error) {
	if !l.Is(ref) || ref.Name == "" {
		return object.Object{}, false, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.object == nil {
		return object.Object{}, true, reply.NotFound(ref)
	}
	return *l.object, true, nil
}

// Alive reports whether the kubelet has renewed the Lease within its duration.
func (l *Lease) Alive(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.object != nil && !l.renewed.IsZero() && now.Sub(l.renewed) < l.duration
}

// Write takes a write of the Lease. Its version is from the common counter, and is not stored on
// the disk.
func (l *Lease) Write(w request.Write, version uint64) (request.Result, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := object.Ref{Resource: Resource, Namespace: corev1.NamespaceNodeLease, Name: l.node}
	if w.Verb == "delete" {
		if l.object == nil {
			return request.Result{}, reply.NotFound(name)
		}
		l.object = nil
		return request.Result{Code: http.StatusOK, Status: reply.Success()}, nil
	}
	next, err := l.next(w, name)
	if err != nil {
		return request.Result{}, err
	}
	code := http.StatusOK
	if l.object == nil {
		code = http.StatusCreated
		next.UID, next.CreationTimestamp = uuid.NewUUID(), metav1.Now()
	} else {
		next.UID = l.object.UID
	}
	next.Name, next.Namespace, next.ResourceVersion = name.Name, name.Namespace, strconv.FormatUint(version, 10)
	o, err := object.FromObject(Resource, next)
	if err != nil {
		return request.Result{}, apierrors.NewInternalError(err)
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
	return request.Result{Code: code, Object: &o}, nil
}

// next is the Lease as the write would have it.
func (l *Lease) next(w request.Write, name object.Ref) (*coordinationv1.Lease, error) {
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
		return nil, apierrors.NewForbidden(Resource.GroupResource(), next.Name, nil)
	}
	switch {
	case w.Verb == "create" && l.object != nil:
		return nil, apierrors.NewAlreadyExists(Resource.GroupResource(), name.Name)
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
