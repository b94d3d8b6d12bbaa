package metamanager

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/outbox"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/podrestart"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/reply"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/view"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

// Write takes a write by its class: the node's events, its own status and its pods' go to the
// outbox and are visible here at once; the kubelet's Lease stays here; a token's answer is kept.
// Other writes pass through, and are a 503 offline.
func (m *Manager) Write(ctx context.Context, w Write) (Result, error) {
	if w.UID == "" && w.Verb == "patch" && w.PatchType != types.JSONPatchType {
		w.UID = object.PatchUID(w.Body)
	}
	// An account is authorized by its own permissions, not by its node's.
	if asNode := w.Caller.BearerToken == ""; asNode {
		switch {
		case m.lease.Is(w.Ref) && w.Verb != "deletecollection":
			return m.lease.Write(w, m.view.NextVersion())
		case w.Ref.Resource == view.Events && w.Subresource == "" && w.Verb != "deletecollection":
			return m.writeEvent(ctx, w)
		case w.Verb == "patch" && m.classOf(w) != storepb.Class_CLASS_UNSPECIFIED:
			return m.writePatch(ctx, w, m.classOf(w))
		case w.Verb == "delete" && w.Caller.Kubelet && w.Ref.Resource == view.Pods && w.Subresource == "":
			if uid, ok := finalDeletion(w); ok {
				w.UID = uid
				return m.writeDeletion(ctx, w)
			}
		case w.Verb == "create" && w.Ref.Resource == view.Nodes && w.Subresource == "" && !m.Linked():
			// A kubelet that starts without a link: its Node is cached already, so the kubelet uses
			// it.
			own := object.Ref{Resource: view.Nodes, Name: m.config.NodeName}
			if _, err := m.Get(ctx, own, Caller{}); err == nil {
				return Result{}, apierrors.NewAlreadyExists(view.Nodes.GroupResource(), m.config.NodeName)
			}
		}
	}
	if w.Verb == "create" && w.Ref.Resource.GroupResource().String() == "serviceaccounts" && w.Subresource == "token" {
		return m.tokens.Write(ctx, w)
	}
	return m.passThrough(ctx, w)
}

// classOf returns the outbox class of a patch.
func (m *Manager) classOf(w Write) storepb.Class {
	switch {
	case w.Ref.Resource == view.Pods && w.Subresource == "status":
		return storepb.Class_POD_STATUS
	case w.Ref.Resource == view.Nodes && w.Ref.Name == m.config.NodeName && (w.Subresource == "status" || w.Subresource == ""):
		return storepb.Class_NODE_STATUS
	}
	return storepb.Class_CLASS_UNSPECIFIED
}

// writePatch applies a patch to the cached object and queues it. Pending patches of one object are
// merged.
func (m *Manager) writePatch(ctx context.Context, w Write, class storepb.Class) (Result, error) {
	switch w.PatchType {
	case types.StrategicMergePatchType, types.MergePatchType, types.JSONPatchType:
	default:
		return m.passThrough(ctx, w) // server-side apply needs the managed fields that only kube-apiserver has
	}
	if len(w.Query["dryRun"]) > 0 {
		return m.passThrough(ctx, w)
	}
	var shown object.Object
	passes := false
	err := m.do(ctx, func(b *batch) error {
		passes = false
		have := b.view.Get(w.Ref)
		if have.Visible() == nil {
			if have == nil && m.Linked() {
				passes = true // such as a mirror pod that was made a moment ago
				return nil
			}
			if have != nil || m.view.Gone(w.Ref) {
				return reply.NotFound(w.Ref)
			}
			return reply.Offline("this node does not hold " + w.Ref.String())
		}
		if w.UID != "" && w.UID != have.Shown.UID {
			return reply.Conflict(w.Ref, "Precondition failed: UID in precondition: %v, UID in object meta: %v", w.UID, have.Shown.UID)
		}
		body, err := withoutVersion(w, have.Shown)
		if err != nil {
			return err
		}
		shown, err = m.stagePatch(b, w, class, have, body)
		return err
	})
	switch {
	case err != nil:
		return Result{}, reply.From(err)
	case passes:
		return m.passThrough(ctx, w)
	}
	return Result{Code: http.StatusOK, Object: &shown}, nil
}

// withoutVersion checks the version in a patch against the visible object and removes it: a queued
// patch can't depend on it.
func withoutVersion(w Write, shown object.Object) ([]byte, error) {
	if w.PatchType == types.JSONPatchType {
		return w.Body, nil
	}
	var patch map[string]any
	if err := json.Unmarshal(w.Body, &patch); err != nil {
		return nil, apierrors.NewBadRequest("the patch can't be read: " + err.Error())
	}
	md, _ := patch["metadata"].(map[string]any)
	version, named := md["resourceVersion"].(string)
	if !named {
		return w.Body, nil
	}
	if version != "" && version != strconv.FormatUint(shown.Version, 10) && version != shown.CloudVersion {
		return nil, reply.Conflict(w.Ref, "the object has been modified; please apply your changes to the latest version and try again")
	}
	delete(md, "resourceVersion")
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return body, nil
}

// stagePatch applies the patch to the cached object and stages its entry, merged into the last
// pending one if possible.
func (m *Manager) stagePatch(b *batch, w Write, class storepb.Class, have *view.Held, body []byte) (object.Object, error) {
	now, err := object.DecodeRaw(have.Shown.Raw)
	if err != nil {
		return object.Object{}, apierrors.NewInternalError(err)
	}
	patched, err := object.Patch(now, w.PatchType, body)
	switch {
	case errors.Is(err, object.ErrPatchType):
		return object.Object{}, reply.Status(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, err.Error(), 0)
	case err != nil:
		return object.Object{}, apierrors.NewBadRequest(err.Error())
	}
	raw, err := object.Encode(patched)
	if err != nil {
		return object.Object{}, apierrors.NewInternalError(err)
	}
	if bytes.Equal(raw, have.Shown.Raw) {
		return have.Shown, nil // no difference: no change, no write
	}
	if len(raw) > object.MaxRaw {
		return object.Object{}, apierrors.NewRequestEntityTooLargeError("the patched object is too large")
	}
	var laid []*outbox.Entry
	for _, e := range b.outbox.Pending(w.Ref) {
		if e.Laid() {
			laid = append(laid, e)
		}
	}
	shown := have.Shown
	shown.Raw = raw
	if am, err := meta.Accessor(patched); err == nil {
		shown.Labels = object.NewLabels(am.GetLabels())
	}
	e := &outbox.Entry{
		Class: class, Verb: topicpb.Verb_PATCH, Subresource: w.Subresource, PatchType: w.PatchType, Body: body, UID: cmp.Or(w.UID, shown.UID),
		At: time.Now().UnixMilli(), Size: len(body), Volatile: object.OnlyHeartbeat(now, patched),
	}
	var withheld string
	if ended := m.endedHere(b, w, class, now, patched); ended != nil {
		e.Local, withheld = true, podrestart.Withheld(ended)
		b.After(m.wakeRestarts)
	}
	last, merged, heartbeat := b.outbox.MergePatch(have.Delivered(), laid, e)
	if merged == nil && len(laid) >= m.config.Limits.ObjectEntries {
		return object.Object{}, reply.TooMany("too many writes to " + w.Ref.String() + " wait for the cloud")
	}
	next := have.With(shown, have.Hidden())
	if e.Local {
		next = next.Withhold(withheld)
	}
	h := b.view.Set(w.Ref, next)
	if merged != nil {
		merged.ShownVersion = h.Shown.Version
		if heartbeat != nil {
			b.outbox.Remove(w.Ref, func(o *outbox.Entry) bool { return o == heartbeat })
		}
		b.outbox.Merge(w.Ref, last, merged)
		return h.Shown, nil
	}
	e.ShownVersion = h.Shown.Version
	b.outbox.Add(w.Ref, e)
	return h.Shown, nil
}

// finalDeletion reports whether a deletion is the kubelet's last word on a pod: at once, and
// of this very pod.
func finalDeletion(w Write) (types.UID, bool) {
	o := metav1.DeleteOptions{}
	if len(w.Body) > 0 {
		if err := object.DecodeOptions(w.Body, &o); err != nil {
			return "", false
		}
	}
	if o.GracePeriodSeconds == nil || *o.GracePeriodSeconds != 0 || o.Preconditions == nil || o.Preconditions.UID == nil || len(o.DryRun) > 0 {
		return "", false
	}
	return *o.Preconditions.UID, o.Preconditions.ResourceVersion == nil
}

func (m *Manager) writeDeletion(ctx context.Context, w Write) (Result, error) {
	grace := int64(0)
	body, err := json.Marshal(metav1.DeleteOptions{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}, GracePeriodSeconds: &grace, Preconditions: &metav1.Preconditions{UID: &w.UID},
	})
	if err != nil {
		return Result{}, apierrors.NewInternalError(err)
	}
	passes := false
	err = m.do(ctx, func(b *batch) error {
		passes = false
		have := b.view.Get(w.Ref)
		switch {
		case have == nil && m.Linked():
			passes = true
			return nil
		case have.Visible() == nil && (have != nil || m.view.Gone(w.Ref)):
			return reply.NotFound(w.Ref)
		case have == nil:
			return reply.Offline("this node does not hold " + w.Ref.String())
		case w.UID != have.Shown.UID:
			return reply.Conflict(w.Ref, "Precondition failed: UID in precondition: %v, UID in object meta: %v", w.UID, have.Shown.UID)
		}
		if slices.ContainsFunc(b.outbox.Pending(w.Ref), func(e *outbox.Entry) bool { return e.Verb == topicpb.Verb_DELETE && e.UID == w.UID }) {
			return nil // it is shown still for a finalizer, and its deletion waits or was accepted
		}
		b.view.Set(w.Ref, have.With(have.Shown, !outbox.Outlives(have.Delivered())))
		b.outbox.Add(w.Ref, &outbox.Entry{
			Class: storepb.Class_POD, Verb: topicpb.Verb_DELETE, Body: body, UID: w.UID, At: time.Now().UnixMilli(), Size: len(body),
			ShownVersion: b.view.Version(),
		})
		return nil
	})
	switch {
	case err != nil:
		return Result{}, reply.From(err)
	case passes:
		return m.passThrough(ctx, w)
	}
	done := reply.Success()
	done.Details = &metav1.StatusDetails{Name: w.Ref.Name, Kind: w.Ref.Resource.Resource, UID: w.UID}
	return Result{Code: http.StatusOK, Status: done}, nil
}
