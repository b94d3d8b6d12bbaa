package relay

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	return s.createEvent(ctx, w)
}

// createEvent makes an event. One that is there was made by an attempt whose answer was lost, and
// has perhaps been repeated since. Later attempts know that.
func (s *session) createEvent(ctx context.Context, w *eventWrite) outcome {
	resp, err := s.postEvent(ctx, w)
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return refused(status)
	}
	if err == nil && resp.Code == http.StatusConflict && apierrors.IsAlreadyExists(resp.Err()) {
		s.versions.seen(w.key)
		o := s.patchEvent(ctx, w)
		o.progressed = true
		return o
	}
	o := judge(resp, err)
	if o.accepted() {
		s.versions.put(w.key, o.version)
	}
	return o
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
	patch, err := w.patch()
	if err != nil {
		return refused(err)
	}
	f := fencedWrite{
		key:      w.key,
		read:     func(ctx context.Context) (*kube.Response, error) { return s.readOwn(ctx, w) },
		done:     func(read []byte) bool { return has(read, patch) },
		obsolete: func(read []byte) bool { return occurrences(read) > occurrences(patch) },
		write: func(ctx context.Context, version string) (*kube.Response, error) {
			body, err := withPreconditions(patch, "", version)
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
	there, err := readEvent(resp.Body, false)
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
