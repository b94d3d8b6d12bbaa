package view

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

// Interest is one set of objects that this device wants.
type Interest struct {
	// Never changed.
	Resource  schema.GroupVersionResource
	Namespace string
	Fields    string
	id        uint64
	labels    string
	deps      bool // objects that pods refer to

	// Guarded by the View's lock; changed by Show alone, but for the last three.
	pinned  bool
	synced  bool           // its whole set was delivered at least once
	refused *metav1.Status // kube-apiserver does not let this node have it

	watchers int
	idle     time.Duration // linked time since the last use
	wake     chan struct{} // closed and renewed when synced or refused changes
}

func (i *Interest) wakeAll() {
	close(i.wake)
	i.wake = make(chan struct{})
}

// selection is the set as a selection.
func (i *Interest) selection() (object.Selection, error) {
	s := object.Selection{Resource: i.Resource, Namespace: i.Namespace}
	var err error
	if s.Labels, err = labels.Parse(i.labels); err != nil {
		return s, err
	}
	s.Fields, err = fields.ParseSelector(i.Fields)
	return s, err
}

// Brings reports whether objects of a resource may be in the set.
func (i *Interest) Brings(resource schema.GroupVersionResource) bool {
	return i.Resource == resource || i.deps && object.Travels(resource)
}

// Has reports whether an object may be in the set, regardless of the selectors.
func (i *Interest) Has(ref object.Ref) bool {
	return i.Brings(ref.Resource) && (i.Namespace == "" || i.Namespace == ref.Namespace)
}

// covers reports whether the set contains all objects of the selection.
func (i *Interest) covers(s object.Selection) bool {
	return !i.deps && i.Resource == s.Resource && (i.Namespace == "" || i.Namespace == s.Namespace) &&
		(i.labels == "" || i.labels == s.LabelString()) && (i.Fields == "" || i.Fields == s.FieldString())
}

func (i *Interest) record() *storepb.Interest {
	return &storepb.Interest{
		Group: i.Resource.Group, Version: i.Resource.Version, Resource: i.Resource.Resource, Namespace: i.Namespace,
		LabelSelector: i.labels, FieldSelector: i.Fields, Dependencies: i.deps, Synced: i.synced, Pinned: i.pinned,
	}
}

func interestOf(id uint64, r *storepb.Interest) *Interest {
	return &Interest{
		id: id, Resource: schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Resource}, Namespace: r.Namespace,
		labels: r.LabelSelector, Fields: r.FieldSelector, deps: r.Dependencies, synced: r.Synced, pinned: r.Pinned, wake: make(chan struct{}),
	}
}

func (i *Interest) wire() *topicpb.Interest {
	if i.deps {
		return &topicpb.Interest{Id: i.id, Dependencies: true}
	}
	return &topicpb.Interest{
		Id: i.id, Resource: wireResource(i.Resource), Namespace: i.Namespace, LabelSelector: i.labels, FieldSelector: i.Fields,
	}
}
