package relay

import (
	"context"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/kube"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// isPatch reports whether t is a kind of patch that a write may bear. JSON patches can't be merged while they wait, so the edge sends none.
func isPatch(t string) bool {
	return t == string(types.StrategicMergePatchType) || t == string(types.MergePatchType)
}

// writePodStatus patches the status of a pod. A pod that is gone, or another one of the same name, ends it.
func (s *session) writePodStatus(ctx context.Context, w *topicpb.Write) outcome {
	if resourceOf(w) != kube.Pods || w.GetSubresource() != "status" || w.GetVerb() != topicpb.Verb_PATCH || !isPatch(w.GetPatchType()) {
		return badWrite(w, "the status of pods is patched")
	}
	p, err := pathTo(kube.Pods, w.GetNamespace(), w.GetName(), "status")
	if err != nil {
		return refused(err)
	}
	body, err := withUID(w.GetBody(), w.GetUid())
	if err != nil {
		return refused(err)
	}
	resp, err := s.do(ctx, http.MethodPatch, p, w.GetPatchType(), body)
	o := judge(resp, err)
	if o.retry == never {
		return o
	}
	if resp != nil && resp.Code == http.StatusConflict && otherUID(resp.Err()) {
		return refused(resp.Err())
	}
	// A refusal that is not final yet, or a conflict: with a pod that is known to be another by now there is nothing to wait for.
	if live := s.relay.pods.live(kube.Key{Namespace: w.GetNamespace(), Name: w.GetName()}); live != nil && resp != nil && resp.Code < 500 &&
		(live.Node() != string(s.node) && live.Node() != "") {
		return refused(resp.Err())
	}
	return o
}

// otherUID reports whether a conflict means that the object of that name is another one.
func otherUID(err error) bool {
	if !apierrors.IsConflict(err) {
		return false
	}
	// What kube-apiserver says of a precondition at a deletion, at an update, and of a patch that bears a uid.
	for _, text := range []string{"UID in the precondition", "UID in precondition", "uid mismatch"} {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}
