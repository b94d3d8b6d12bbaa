package relay

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// writeNodeStatus patches the node's own Node object, or its status.
func (s *session) writeNodeStatus(ctx context.Context, w *topicpb.Write) outcome {
	nodes := schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	if resourceOf(w) != nodes || w.GetVerb() != topicpb.Verb_PATCH || !isPatch(w.GetPatchType()) ||
		w.GetSubresource() != "" && w.GetSubresource() != "status" || w.GetNamespace() != "" {
		return refused(badWrite(w, "the node and its status are patched"))
	}
	if w.GetName() != string(s.node) {
		return refused(apierrors.NewForbidden(nodes.GroupResource(), w.GetName(), fmt.Errorf("node %s writes its own Node object alone", s.node)))
	}
	if s.relay.hide {
		w = &topicpb.Write{
			Id: w.GetId(), Verb: w.GetVerb(), Resource: w.GetResource(), Name: w.GetName(), Subresource: w.GetSubresource(), Uid: w.GetUid(), ResourceVersion: w.GetResourceVersion(),
			PatchType: w.GetPatchType(), Body: hideInPatch(w.GetBody()),
		}
	}
	o, _ := s.patch(ctx, w)
	return o
}
