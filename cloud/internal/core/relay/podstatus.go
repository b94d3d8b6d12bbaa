package relay

import (
	"context"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// writePodStatus patches the status of a pod. A pod that is gone, or another one of the
// same name, ends it.
func (s *session) writePodStatus(ctx context.Context, w *topicpb.Write) outcome {
	if resourceOf(w) != kube.Pods || w.GetSubresource() != "status" || w.GetVerb() != topicpb.Verb_PATCH || !isPatch(w.GetPatchType()) {
		return refused(badWrite(w, "the status of pods is patched"))
	}
	o, resp := s.patch(ctx, w)
	if o.retry == never || resp == nil || resp.Code >= 500 {
		return o
	}
	// A refusal that is not final yet, or a conflict: where the pod of that name is known to be
	// another node's, waiting is useless.
	live := s.relay.pods.live(kube.Key{Namespace: w.GetNamespace(), Name: w.GetName()})
	if live != nil && live.Node() != "" && live.Node() != string(s.node) {
		return refused(resp.Err())
	}
	return o
}
