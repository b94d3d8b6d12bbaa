package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// event is what relay reads of an Event, of the core group or of events.k8s.io.
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

// readEvent reads a body: Kubernetes protobuf of an event of the core group, which is what
// edges send, or JSON.
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

// patch is what may change of an event that is there, as a merge patch.
func (e *event) patch(body []byte) ([]byte, error) {
	if e.whole != nil {
		var err error
		if body, err = json.Marshal(e.whole); err != nil {
			return nil, apierrors.NewBadRequest("the event can't be written as JSON: " + err.Error())
		}
	}
	return eventPatch(body)
}

// fresh is the event without what only kube-apiserver may set, and its content type.
func (e *event) fresh(body []byte) ([]byte, string, error) {
	if e.whole == nil {
		body, err := freshEvent(body)
		return body, "application/json", err
	}
	made := *e.whole
	made.UID, made.ResourceVersion, made.CreationTimestamp, made.ManagedFields, made.Generation = "", "", metav1.Time{}, nil, 0
	body, err := kube.ToProtobuf(corev1.SchemeGroupVersion.WithKind("Event"), &made)
	if err != nil {
		return nil, "", apierrors.NewBadRequest("the event can't be encoded: " + err.Error())
	}
	return body, kube.Protobuf, nil
}

func (e *event) about() corev1.ObjectReference {
	if e.Regarding.Kind != "" {
		return e.Regarding
	}
	return e.InvolvedObject
}

// writeEvent makes or updates an Event. The body is always the whole of it: a create that finds it
// there was made before, an update that finds it gone (kube-apiserver keeps events for an hour)
// makes it again.
func (s *session) writeEvent(ctx context.Context, w *topicpb.Write) outcome {
	gvr := resourceOf(w)
	core := gvr == schema.GroupVersionResource{Version: "v1", Resource: "events"}
	if !core && gvr != (schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}) || w.GetSubresource() != "" {
		return badWrite(w, "events are made and patched")
	}
	e, err := readEvent(w.GetBody(), core)
	if err != nil {
		return refused(err)
	}
	if e.Metadata.Name != w.GetName() || e.Metadata.Namespace != w.GetNamespace() || w.GetName() == "" {
		return refused(apierrors.NewBadRequest("the event's name isn't that of the write"))
	}
	if !s.relay.pods.ready() { // better late than accepted unseen
		return outcome{retry: wholeNode, why: fmt.Errorf("the pods are not known yet")}
	}
	if reason := s.forged(e); reason != "" {
		return refused(apierrors.NewForbidden(gvr.GroupResource(), w.GetName(), fmt.Errorf("%s", reason)))
	}
	switch w.GetVerb() {
	case topicpb.Verb_CREATE:
		return s.createEvent(ctx, gvr, w, e)
	case topicpb.Verb_PATCH:
		return s.patchEvent(ctx, gvr, w, e)
	}
	return badWrite(w, "events are made and patched")
}

// sameEvent refuses a repeat of an event that is there and is about another object than the repeat
// says: the name of the one in the path is the device's to choose, and what may be written was
// judged by the body.
func (s *session) sameEvent(w *topicpb.Write, e *event, have []byte) error {
	there, err := readEvent(have, false)
	if err != nil {
		return err
	}
	is, says := there.about(), e.about()
	if is.Kind != says.Kind || is.Namespace != says.Namespace || is.Name != says.Name || is.UID != says.UID || s.forged(there) != "" {
		return apierrors.NewForbidden(resourceOf(w).GroupResource(), w.GetName(),
			fmt.Errorf("the event is about %s %s/%s, and not about %s %s/%s of node %s", is.Kind, is.Namespace, is.Name, says.Kind, says.Namespace, says.Name, s.node))
	}
	return nil
}

// createEvent makes an event. One that is there was made by an attempt whose answer was lost, and
// has perhaps been repeated since. Later attempts know that.
func (s *session) createEvent(ctx context.Context, gvr schema.GroupVersionResource, w *topicpb.Write, e *event) outcome {
	if s.versions.exists(key(w)) {
		return s.patchEvent(ctx, gvr, w, e)
	}
	resp, err := s.postEvent(ctx, gvr, w, e)
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return refused(status)
	}
	if err == nil && resp.Code == http.StatusConflict && apierrors.IsAlreadyExists(resp.Err()) {
		s.versions.seen(key(w))
		o := s.patchEvent(ctx, gvr, w, e)
		o.progressed = true
		return o
	}
	o := judge(resp, err)
	if o.accepted() {
		s.versions.put(key(w), o.version)
	}
	return o
}

// postEvent asks for an event to be made. An error that is a Status says what is wrong with it.
func (s *session) postEvent(ctx context.Context, gvr schema.GroupVersionResource, w *topicpb.Write, e *event) (*kube.Response, error) {
	p, err := pathTo(gvr, w.GetNamespace(), "", "")
	if err != nil {
		return nil, err
	}
	body, contentType, err := e.fresh(w.GetBody())
	if err != nil {
		return nil, err
	}
	return s.do(ctx, http.MethodPost, p, contentType, body)
}

// patchEvent makes an event say what it says now: a repeat that comes late must not take back a
// later one, nor one that happened more often. An event that is gone is made again. Nodes may not
// read events, so what is there is read by a patch that changes nothing. An event of a version that
// this session knows was looked at before.
func (s *session) patchEvent(ctx context.Context, gvr schema.GroupVersionResource, w *topicpb.Write, e *event) outcome {
	p, err := pathTo(gvr, w.GetNamespace(), w.GetName(), "")
	if err != nil {
		return refused(err)
	}
	patch, err := e.patch(w.GetBody())
	if err != nil {
		return refused(err)
	}
	merge := func(ctx context.Context, body []byte) (*kube.Response, error) {
		return s.do(ctx, http.MethodPatch, p, string(types.MergePatchType), body)
	}
	f := fencedWrite{
		key: key(w),
		read: func(ctx context.Context) (*kube.Response, error) {
			resp, err := s.relay.client.Do(ctx, s.as, kube.Request{Method: http.MethodPatch, Path: p, ContentType: string(types.MergePatchType), Body: []byte("{}")})
			if err != nil || resp.Err() != nil {
				return resp, err
			}
			return resp, s.sameEvent(w, e, resp.Body)
		},
		done:     func(read []byte) bool { return has(read, patch) },
		obsolete: func(read []byte) bool { return occurrences(read) > occurrences(patch) },
		write: func(ctx context.Context, version string) (*kube.Response, error) {
			body, err := withPreconditions(patch, "", version)
			if err != nil {
				return nil, err
			}
			return merge(ctx, body)
		},
		missing: func(ctx context.Context) (*kube.Response, error) { return s.postEvent(ctx, gvr, w, e) },
	}
	o, resp := s.fenced(ctx, f)
	if resp != nil && resp.Code == http.StatusNotFound { // of a version that this session wrote: kube-apiserver keeps events for an hour
		s.versions.forget(f.key)
		o, _ = s.fenced(ctx, f)
		o.progressed = true
	}
	return o
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

// eventPatch is what may change of an event that is there; body is JSON.
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

// freshEvent takes out of an event, which is JSON, what only kube-apiserver may set.
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

// forged gives the reason an event is none of this node's, or "". Kubernetes itself lets any node
// write any event; events.md, rule 9, doesn't: only those of the node itself and of pods bound to
// it.
//
// Events of a pod that is not known (any more) are accepted: it was deleted while the node was cut
// off, longer ago than we remember, and its events are among those that must not be lost. They are
// about no existing pod. Where the name is another node's pod now, and the uid is none that we
// remember of this node, it is refused.
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
