package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// writeEvent makes or updates an Event. The body is always the whole of it: a create that finds it
// there was made before, an update that finds it gone (kube-apiserver keeps events for an hour)
// makes it again.
func (s *session) writeEvent(ctx context.Context, m *topicpb.Write) outcome {
	w, err := parseEvent(m)
	if err != nil {
		return refused(err)
	}
	if !s.relay.pods.ready() { // better late than accepted unseen
		return outcome{retry: wholeNode, why: fmt.Errorf("the pods are not known yet")}
	}
	if reason := s.forged(w.event); reason != "" {
		return refused(w.forbidden("%s", reason))
	}
	if !w.create || s.versions.exists(w.key) {
		return s.patchEvent(ctx, w)
	}
	o, exists := s.createEvent(ctx, w)
	switch {
	case o.accepted():
		s.versions.put(w.key, o.version)
	case exists: // made by an attempt whose answer was lost, and perhaps repeated since; later attempts know that
		s.versions.seen(w.key)
		o = s.patchEvent(ctx, w)
		o.progressed = true
	}
	return o
}

// createEvent makes an event, unless it exists.
func (s *session) createEvent(ctx context.Context, w *eventWrite) (o outcome, exists bool) {
	resp, err := s.postEvent(ctx, w)
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return refused(status), false
	}
	exists = err == nil && resp.Code == http.StatusConflict && apierrors.IsAlreadyExists(resp.Err())
	return judge(resp, err), exists
}

// postEvent asks for an event to be made. An error that is a Status names the defect of the event.
func (s *session) postEvent(ctx context.Context, w *eventWrite) (*kube.Response, error) {
	body, contentType, err := w.fresh()
	if err != nil {
		return nil, err
	}
	return s.do(ctx, http.MethodPost, w.collection, contentType, body)
}

// patchEvent updates an event: a repeat that comes late must not take back a later one, nor one
// that happened more often. An event that is gone is made again. An event of a version that this
// session knows was looked at before.
func (s *session) patchEvent(ctx context.Context, w *eventWrite) outcome {
	patch, err := w.patch("")
	if err != nil {
		return refused(err)
	}
	f := fencedWrite{
		key:      w.key,
		read:     func(ctx context.Context) (*kube.Response, error) { return s.readOwn(ctx, w) },
		done:     func(read []byte) bool { return has(read, patch) },
		obsolete: func(read []byte) bool { return occurrences(read) > occurrences(patch) },
		write: func(ctx context.Context, version string) (*kube.Response, error) {
			body, err := w.patch(version)
			if err != nil {
				return nil, err
			}
			return s.do(ctx, http.MethodPatch, w.path, string(types.MergePatchType), body)
		},
		missing: func(ctx context.Context) (*kube.Response, error) { return s.postEvent(ctx, w) },
	}
	o, resp := s.fenced(ctx, f)
	if resp != nil && resp.Code == http.StatusNotFound { // of a version that this session wrote: kube-apiserver keeps events for an hour
		s.versions.forget(w.key)
		o, _ = s.fenced(ctx, f)
		o.progressed = true
	}
	return o
}

// readOwn reads the stored event by an empty patch, since nodes may not read events. It refuses the
// write where that event is about another object: the device chooses the name in the path, and the
// rights were judged by the body.
func (s *session) readOwn(ctx context.Context, w *eventWrite) (*kube.Response, error) {
	resp, err := s.relay.client.Do(ctx, s.as, kube.Request{Method: http.MethodPatch, Path: w.path, ContentType: string(types.MergePatchType), Body: []byte("{}")})
	if err != nil || resp.Err() != nil {
		return resp, err
	}
	there, err := readEvent(resp.Body)
	if err != nil {
		return resp, err
	}
	if is, want := there.about(), w.about(); !same(is, want) || s.forged(there) != "" {
		return resp, w.forbidden("the event is about %s %s/%s, and not about %s %s/%s of node %s", is.Kind, is.Namespace, is.Name, want.Kind, want.Namespace, want.Name, s.node)
	}
	return resp, nil
}

// same reports whether two references are to one object.
func same(a, b corev1.ObjectReference) bool {
	return a.Kind == b.Kind && a.Namespace == b.Namespace && a.Name == b.Name && a.UID == b.UID
}

// forged returns the reason why an event is not this node's, or "". Kubernetes itself lets any node
// write any event; events.md, rule 9, doesn't: only those of the node itself and of pods bound to
// it.
//
// Events of an unknown pod are accepted: it was deleted while the node was disconnected, longer ago
// than the record of departed pods lasts, and its events are among those that must not be lost.
// They are about no existing pod. Where the name is now another node's pod, and the uid is not of a
// departed pod of this node, the event is refused.
func (s *session) forged(e *event) string {
	for _, source := range []corev1.EventSource{e.Source, e.Deprecated} {
		if source.Host != "" && source.Host != string(s.node) {
			return fmt.Sprintf("node %s can't report as host %s", s.node, source.Host)
		}
	}
	about := e.about()
	group := schema.FromAPIVersionAndKind(about.APIVersion, about.Kind).Group
	switch {
	case about.Kind == "Node" && group == "":
		if about.Name != string(s.node) {
			return fmt.Sprintf("node %s can't report events of node %s", s.node, about.Name)
		}
	case about.Kind == "Pod" && group == "":
		if s.relay.pods.owner(s.node, kube.Key{Namespace: about.Namespace, Name: about.Name}, about.UID) == foreign {
			return fmt.Sprintf("pod %s/%s is not bound to node %s", about.Namespace, about.Name, s.node)
		}
	default:
		return fmt.Sprintf("a node reports events of itself and of its pods, not of %s %s", about.Kind, about.Name)
	}
	return ""
}

// eventWrite is one write of an Event, parsed once: the message that it came in is not read again.
type eventWrite struct {
	*event
	resource   schema.GroupVersionResource
	key        string // of the write's queue
	path       string // of the Event
	collection string // that it is created in
	create     bool
	// fields and metadata are those of the Event, as JSON. Where it came as protobuf, patch makes
	// fields.
	fields, metadata map[string]json.RawMessage
}

// parseEvent reads a write of the topic EventWrite. Its errors are Statuses.
func parseEvent(m *topicpb.Write) (*eventWrite, error) {
	w, err := parseEventBody(m.GetBody())
	if err != nil {
		return nil, err
	}
	w.resource, w.key, w.create = resourceOf(m), key(m), m.GetVerb() == topicpb.Verb_CREATE
	core := w.resource == schema.GroupVersionResource{Version: "v1", Resource: "events"}
	known := core || w.resource == schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}
	if !known || m.GetSubresource() != "" || !w.create && m.GetVerb() != topicpb.Verb_PATCH {
		return nil, badWrite(m, "events are made and patched")
	}
	if w.whole != nil && !core {
		return nil, apierrors.NewBadRequest("only events of the core group are taken as protobuf")
	}
	if w.Metadata.Name != m.GetName() || w.Metadata.Namespace != m.GetNamespace() || m.GetName() == "" {
		return nil, apierrors.NewBadRequest("the event's name isn't that of the write")
	}
	if w.collection, err = pathTo(w.resource, m.GetNamespace(), "", ""); err != nil {
		return nil, err
	}
	w.path, err = pathTo(w.resource, m.GetNamespace(), m.GetName(), "")
	return w, err
}

func parseEventBody(body []byte) (w *eventWrite, err error) {
	w = &eventWrite{}
	if w.event, err = readEvent(body); err != nil || w.whole != nil {
		return w, err
	}
	if w.fields, err = fieldsOf(body, "event"); err != nil {
		return nil, err
	}
	w.metadata, err = fieldsOf(w.fields["metadata"], "event's metadata")
	return w, err
}

// forbidden refuses the write.
func (w *eventWrite) forbidden(format string, args ...any) error {
	return apierrors.NewForbidden(w.resource.GroupResource(), w.Metadata.Name, fmt.Errorf(format, args...))
}

// patch is the part of the event that may change, as a merge patch that is laid on top of a version
// of the event alone; "": of any.
func (w *eventWrite) patch(version string) ([]byte, error) {
	if w.fields == nil {
		body, err := json.Marshal(w.whole)
		if err == nil {
			err = json.Unmarshal(body, &w.fields)
		}
		if err != nil {
			return nil, apierrors.NewBadRequest("the event can't be written as JSON: " + err.Error())
		}
	}
	patch := map[string]any{}
	for _, field := range []string{"count", "lastTimestamp", "message", "note", "series", "deprecatedCount", "deprecatedLastTimestamp"} {
		if v, ok := w.fields[field]; ok {
			patch[field] = v
		}
	}
	if version != "" {
		patch["metadata"] = map[string]string{"resourceVersion": version}
	}
	return json.Marshal(patch)
}

// fresh is the event without the fields that only kube-apiserver may set, and its content type.
func (w *eventWrite) fresh() ([]byte, string, error) {
	if w.whole != nil {
		made := *w.whole
		made.UID, made.ResourceVersion, made.CreationTimestamp, made.ManagedFields, made.Generation = "", "", metav1.Time{}, nil, 0
		body, err := kube.ToProtobuf(corev1.SchemeGroupVersion.WithKind("Event"), &made)
		if err != nil {
			return nil, "", apierrors.NewBadRequest("the event can't be encoded: " + err.Error())
		}
		return body, kube.Protobuf, nil
	}
	fields, metadata := maps.Clone(w.fields), maps.Clone(w.metadata)
	for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "selfLink"} {
		delete(metadata, field)
	}
	var err error
	if fields["metadata"], err = json.Marshal(metadata); err != nil {
		return nil, "", err
	}
	body, err := json.Marshal(fields)
	return body, "application/json", err
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
func readEvent(body []byte) (*event, error) {
	e := &event{}
	if !kube.IsProtobuf(body) {
		if err := json.Unmarshal(body, e); err != nil {
			return nil, apierrors.NewBadRequest("the event is no JSON object: " + err.Error())
		}
		return e, nil
	}
	e.whole = &corev1.Event{}
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
