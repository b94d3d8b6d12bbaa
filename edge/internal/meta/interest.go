package meta

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/object"
	"github.com/skerry-io/skerry/edge/internal/store/storepb"
)

// interest is one set of objects that this device wants. Guarded by Manager.mu; only the core changes synced and refused.
type interest struct {
	id        uint64
	resource  schema.GroupVersionResource
	namespace string
	labels    string
	fields    string
	deps      bool // what pods refer to
	pinned    bool
	synced    bool           // its whole set was delivered at least once
	refused   *metav1.Status // kube-apiserver does not let this node have it

	watchers int
	idle     time.Duration // linked time since the last use
	wake     chan struct{} // closed and renewed when synced or refused changes
}

func (i *interest) wakeAll() {
	close(i.wake)
	i.wake = make(chan struct{})
}

// selection is the set as a selection.
func (i *interest) selection() (object.Selection, error) {
	s := object.Selection{Resource: i.resource, Namespace: i.namespace}
	var err error
	if s.Labels, err = labels.Parse(i.labels); err != nil {
		return s, err
	}
	s.Fields, err = fields.ParseSelector(i.fields)
	return s, err
}

// covers reports whether the selection asks for nothing that is not in the set.
func (i *interest) covers(s object.Selection) bool {
	return !i.deps && i.resource == s.Resource && (i.namespace == "" || i.namespace == s.Namespace) &&
		(i.labels == "" || i.labels == s.LabelString()) && (i.fields == "" || i.fields == s.FieldString())
}

func (i *interest) record() *storepb.Interest {
	return &storepb.Interest{
		Group: i.resource.Group, Version: i.resource.Version, Resource: i.resource.Resource, Namespace: i.namespace,
		LabelSelector: i.labels, FieldSelector: i.fields, Dependencies: i.deps, Synced: i.synced, Pinned: i.pinned,
	}
}

func interestOf(id uint64, r *storepb.Interest) *interest {
	return &interest{
		id: id, resource: schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Resource}, namespace: r.Namespace,
		labels: r.LabelSelector, fields: r.FieldSelector, deps: r.Dependencies, synced: r.Synced, pinned: r.Pinned, wake: make(chan struct{}),
	}
}

func (i *interest) wire() *topicpb.Interest {
	if i.deps {
		return &topicpb.Interest{Id: i.id, Dependencies: true}
	}
	return &topicpb.Interest{
		Id: i.id, Resource: wireResource(i.resource), Namespace: i.namespace, LabelSelector: i.labels, FieldSelector: i.fields,
	}
}
