package relay

import (
	"encoding/json"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// eventWrite is one write of an Event, parsed once. All that is done with it needs no more of the
// message that it came in.
type eventWrite struct {
	*event
	resource   schema.GroupVersionResource
	key        string // of the write's queue
	path       string // of the Event
	collection string // that it is created in
	name       string
	create     bool
	body       []byte
}

// parseEvent reads a write of the topic EventWrite. Its errors are Statuses.
func parseEvent(w *topicpb.Write) (*eventWrite, error) {
	resource := resourceOf(w)
	core := resource == schema.GroupVersionResource{Version: "v1", Resource: "events"}
	known := core || resource == schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}
	if verb := w.GetVerb(); !known || w.GetSubresource() != "" || verb != topicpb.Verb_CREATE && verb != topicpb.Verb_PATCH {
		return nil, badWrite(w, "events are made and patched")
	}
	e, err := readEvent(w.GetBody(), core)
	if err != nil {
		return nil, err
	}
	if e.Metadata.Name != w.GetName() || e.Metadata.Namespace != w.GetNamespace() || w.GetName() == "" {
		return nil, apierrors.NewBadRequest("the event's name isn't that of the write")
	}
	collection, err := pathTo(resource, w.GetNamespace(), "", "")
	if err != nil {
		return nil, err
	}
	path, err := pathTo(resource, w.GetNamespace(), w.GetName(), "")
	if err != nil {
		return nil, err
	}
	return &eventWrite{
		event: e, resource: resource, key: key(w), path: path, collection: collection,
		name: w.GetName(), create: w.GetVerb() == topicpb.Verb_CREATE, body: w.GetBody(),
	}, nil
}

// forbidden refuses the write.
func (w *eventWrite) forbidden(format string, args ...any) error {
	return apierrors.NewForbidden(w.resource.GroupResource(), w.name, fmt.Errorf(format, args...))
}

// patch is the part of the event that may change, as a merge patch.
func (w *eventWrite) patch() ([]byte, error) {
	body := w.body
	if w.whole != nil {
		var err error
		if body, err = json.Marshal(w.whole); err != nil {
			return nil, apierrors.NewBadRequest("the event can't be written as JSON: " + err.Error())
		}
	}
	return eventPatch(body)
}

// fresh is the event without the fields that only kube-apiserver may set, and its content type.
func (w *eventWrite) fresh() ([]byte, string, error) {
	if w.whole == nil {
		body, err := freshEvent(w.body)
		return body, "application/json", err
	}
	made := *w.whole
	made.UID, made.ResourceVersion, made.CreationTimestamp, made.ManagedFields, made.Generation = "", "", metav1.Time{}, nil, 0
	body, err := kube.ToProtobuf(corev1.SchemeGroupVersion.WithKind("Event"), &made)
	if err != nil {
		return nil, "", apierrors.NewBadRequest("the event can't be encoded: " + err.Error())
	}
	return body, kube.Protobuf, nil
}

// event has the fields of an Event that relay reads, of the core group or of events.k8s.io.
type event struct {
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	InvolvedObject corev1.ObjectReference `json:"involvedObject"`
	Regarding      corev1.ObjectReference `json:"regarding"`
	Source         corev1.EventSource     `json:"source"`
	Deprecated     corev1.EventSource     `json:"deprecatedSource"`

	whole *corev1.Event // where it came as protobuf
}

// readEvent reads a body: Kubernetes protobuf of an event of the core group, as edges send it, or
// JSON.
func readEvent(body []byte, core bool) (*event, error) {
	e := &event{}
	if !kube.IsProtobuf(body) {
		if err := json.Unmarshal(body, e); err != nil {
			return nil, apierrors.NewBadRequest("the event is no JSON object: " + err.Error())
		}
		return e, nil
	}
	e.whole = &corev1.Event{}
	if !core {
		return nil, apierrors.NewBadRequest("only events of the core group are taken as protobuf")
	}
	if err := kube.FromProtobuf(body, corev1.SchemeGroupVersion.WithKind("Event"), e.whole); err != nil {
		return nil, apierrors.NewBadRequest("the event can't be read: " + err.Error())
	}
	e.Metadata.Name, e.Metadata.Namespace = e.whole.Name, e.whole.Namespace
	e.InvolvedObject, e.Source = e.whole.InvolvedObject, e.whole.Source
	return e, nil
}

// about is the object that the event reports on.
func (e *event) about() corev1.ObjectReference {
	if e.Regarding.Kind != "" {
		return e.Regarding
	}
	return e.InvolvedObject
}

// has reports whether an event has all that a merge patch of it sets. Both are JSON.
func has(event, patch []byte) bool {
	var have, want map[string]any
	if json.Unmarshal(event, &have) != nil || json.Unmarshal(patch, &want) != nil {
		return false
	}
	for field, value := range want {
		if !reflect.DeepEqual(have[field], value) {
			return false
		}
	}
	return true
}

// occurrences returns the count of an event, or of a merge patch of one; -1 if it is invalid. After
// the loss of a part of its store a device sends lower counts than before.
func occurrences(event []byte) int32 {
	var e struct {
		Count           int32 `json:"count"`
		DeprecatedCount int32 `json:"deprecatedCount"`
		Series          struct {
			Count int32 `json:"count"`
		} `json:"series"`
	}
	if json.Unmarshal(event, &e) != nil {
		return -1
	}
	return max(e.Count, e.DeprecatedCount, e.Series.Count)
}

// eventPatch is the part of an event that may change, as a merge patch; body is JSON.
func eventPatch(body []byte) ([]byte, error) {
	whole, err := fieldsOf(body, "event")
	if err != nil {
		return nil, err
	}
	patch := map[string]json.RawMessage{}
	for _, field := range []string{"count", "lastTimestamp", "message", "note", "series", "deprecatedCount", "deprecatedLastTimestamp"} {
		if v, ok := whole[field]; ok {
			patch[field] = v
		}
	}
	return json.Marshal(patch)
}

// freshEvent removes from an event, which is JSON, the fields that only kube-apiserver may set.
func freshEvent(body []byte) ([]byte, error) {
	whole, err := fieldsOf(body, "event")
	if err != nil {
		return nil, err
	}
	metadata, err := fieldsOf(whole["metadata"], "event's metadata")
	if err != nil {
		return nil, err
	}
	for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "selfLink"} {
		delete(metadata, field)
	}
	if whole["metadata"], err = json.Marshal(metadata); err != nil {
		return nil, err
	}
	return json.Marshal(whole)
}
