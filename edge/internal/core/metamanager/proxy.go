package metamanager

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/reply"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// Request asks kube-apiserver, through the cloud, as this node or as the account whose token the
// request has. Without a link, or if it ends before the answer, it returns a 503. Any answer of
// kube-apiserver is a response, not an error.
func (m *Manager) Request(ctx context.Context, r *topicpb.APIRequest) (*topicpb.APIResponse, error) {
	m.mu.RLock()
	p := m.port
	m.mu.RUnlock()
	if !m.view.Running() {
		return nil, reply.From(reply.ErrStopped)
	}
	if !m.Linked() {
		return nil, reply.Offline(r.Method + " " + r.Path)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, m.config.Limits.RequestTimeout)
		defer cancel()
	}
	if deadline, ok := ctx.Deadline(); ok && r.TimeoutMillis == 0 {
		r.TimeoutMillis = max(1, time.Until(deadline).Milliseconds())
	}
	msg := topic.APIRequest.New(message.Resource{Name: r.Path}, r)
	msg.Header.Sync = true
	answer, err := p.SendSync(ctx, m.config.Hub, msg)
	if err == nil {
		var response *topicpb.APIResponse
		if response, err = topic.APIResponse.Content(answer); err == nil {
			m.putOff.Answered(response)
			m.tokens.Judged(r.BearerToken, response.GetCode())
			return response, nil
		}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, apierrors.NewTimeoutError("the cloud did not answer in time", 1)
	case ctx.Err() != nil:
		return nil, apierrors.NewTimeoutError("the request was given up", 1)
	}
	return nil, reply.Unavailable("the link to the cloud gave no answer: "+err.Error(), 1)
}

// passThrough sends a write on. Versions of the edge in it become kube-apiserver's.
func (m *Manager) passThrough(ctx context.Context, w Write) (Result, error) {
	if !m.Linked() {
		return Result{}, reply.Offline(w.Verb + " " + w.Ref.Resource.GroupResource().String())
	}
	body, err := m.cloudVersions(w)
	switch {
	case err != nil && w.Caller.BearerToken != "":
		body = w.Body // kube-apiserver judges the token first; to it a version of the edge is a conflict
	case err != nil:
		return Result{}, err
	}
	method := map[string]string{
		"create": http.MethodPost, "update": http.MethodPut, "patch": http.MethodPatch, "delete": http.MethodDelete, "deletecollection": http.MethodDelete,
	}[w.Verb]
	if method == "" {
		return Result{}, apierrors.NewMethodNotSupported(w.Ref.Resource.GroupResource(), w.Verb)
	}
	contentType := w.ContentType
	if w.Verb == "patch" && contentType == "" {
		contentType = string(w.PatchType)
	}
	response, err := m.Request(ctx, &topicpb.APIRequest{
		Method: method, Path: w.Path, Query: w.Query.Encode(), Accept: w.Accept, ContentType: contentType, Body: body, BearerToken: w.Caller.BearerToken,
	})
	if err != nil {
		return Result{}, err
	}
	m.settle(ctx, w, response)
	return Result{Code: int(response.Code), Response: response}, nil
}

// settle waits briefly until the written object has been delivered, if it will be: a client that
// reads after its write, as a kubelet does with the mirror of a static pod, finds its object.
func (m *Manager) settle(ctx context.Context, w Write, r *topicpb.APIResponse) {
	if r.Code/100 != 2 || (w.Verb != "create" && w.Verb != "update" && w.Verb != "patch") || (w.Subresource != "" && w.Subresource != "status") {
		return
	}
	wrote, err := object.FromRaw(w.Ref.Resource, r.Body)
	if err != nil || wrote.CloudVersion == "" || !m.view.ComesDown(wrote) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, m.config.Limits.SettleWait)
	defer cancel()
	watch, err := m.view.Watch(ctx, object.Selection{
		Resource: wrote.Resource, Namespace: wrote.Namespace, Fields: fields.OneTermEqualSelector("metadata.name", wrote.Name),
	}, WatchOptions{Held: true})
	if err != nil {
		return
	}
	defer watch.Stop()
	for e := range watch.Events() { // closed when ctx ends
		if e.Object.UID == wrote.UID && !object.Older(e.Object.CloudVersion, wrote.CloudVersion) {
			return
		}
	}
}

// firstVersion is the lowest version that an edge gives out: kube-apiserver's are etcd's revisions,
// which are far below.
const firstVersion = 1e12

// cloudVersions puts kube-apiserver's version in the place of the edge's, in an object that is
// updated and in the preconditions of a deletion. One that is not the newest that the edge has
// shown is a conflict, as it would be at kube-apiserver.
func (m *Manager) cloudVersions(w Write) ([]byte, error) {
	switch w.Verb {
	case "update":
		if !bytes.Contains(w.Body, []byte("resourceVersion")) && !object.IsProtobuf(w.Body) {
			return w.Body, nil
		}
		obj, err := object.DecodeRaw(w.Body)
		if err != nil {
			return w.Body, nil // kube-apiserver reports the error
		}
		am, err := meta.Accessor(obj)
		if err != nil {
			return w.Body, nil
		}
		version, changed, err := m.cloudVersion(w.Ref, am.GetResourceVersion())
		if err != nil || !changed {
			return w.Body, err
		}
		am.SetResourceVersion(version)
		return object.EncodeLike(w.Body, obj)
	case "delete":
		o := metav1.DeleteOptions{}
		if len(w.Body) == 0 || object.DecodeOptions(w.Body, &o) != nil || o.Preconditions == nil || o.Preconditions.ResourceVersion == nil {
			return w.Body, nil
		}
		version, changed, err := m.cloudVersion(w.Ref, *o.Preconditions.ResourceVersion)
		if err != nil || !changed {
			return w.Body, err
		}
		o.Preconditions.ResourceVersion = &version
		return object.EncodeLike(w.Body, &o)
	case "patch":
		return m.cloudVersionOfPatch(w)
	}
	return w.Body, nil
}

// cloudVersion translates one version. Those that are not the edge's stay.
func (m *Manager) cloudVersion(ref object.Ref, version string) (cloud string, changed bool, err error) {
	n, parseErr := strconv.ParseUint(version, 10, 64)
	if parseErr != nil || n < firstVersion {
		return version, false, nil
	}
	if h := m.view.Lookup(ref).Visible(); h != nil && h.Shown.Version == n {
		if object.Number(h.Shown.CloudVersion) == 0 {
			return "", false, apierrors.NewBadRequest(fmt.Sprintf(
				"%s come to the edge without their status, and so without the cluster's resourceVersion: leave metadata.resourceVersion out, and patch instead of replacing", ref.Resource.Resource))
		}
		return h.Shown.CloudVersion, true, nil
	}
	return "", false, reply.Conflict(ref, "the object has been modified; please apply your changes to the latest version and try again")
}

func (m *Manager) cloudVersionOfPatch(w Write) ([]byte, error) {
	if w.PatchType == types.JSONPatchType || !bytes.Contains(w.Body, []byte("resourceVersion")) {
		return w.Body, nil
	}
	var patch map[string]any
	if json.Unmarshal(w.Body, &patch) != nil {
		return w.Body, nil // YAML, as server-side apply may be, or unreadable: kube-apiserver decides
	}
	md, _ := patch["metadata"].(map[string]any)
	named, _ := md["resourceVersion"].(string)
	version, changed, err := m.cloudVersion(w.Ref, named)
	if err != nil || !changed {
		return w.Body, err
	}
	md["resourceVersion"] = version
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return body, nil
}
