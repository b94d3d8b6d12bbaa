package relay

import (
	"context"
	"encoding/json"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/kube"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// deletePod makes the last deletion of a pod, which the kubelet asks for when all its containers have ended. It always names the uid: the name may be
// another pod's by now. A pod that is gone already is what was wanted.
func (s *session) deletePod(ctx context.Context, w *topicpb.Write) outcome {
	if resourceOf(w) != kube.Pods || w.GetSubresource() != "" || w.GetVerb() != topicpb.Verb_DELETE {
		return badWrite(w, "pods are deleted")
	}
	var options metav1.DeleteOptions
	if len(w.GetBody()) > 0 {
		if err := json.Unmarshal(w.GetBody(), &options); err != nil {
			return refused(apierrors.NewBadRequest("the options are no JSON object: " + err.Error()))
		}
	}
	if w.GetUid() != "" {
		uid := types.UID(w.GetUid())
		if options.Preconditions == nil {
			options.Preconditions = &metav1.Preconditions{}
		}
		options.Preconditions.UID = &uid
	}
	if options.Preconditions == nil || options.Preconditions.UID == nil || *options.Preconditions.UID == "" {
		return badWrite(w, "with the pod's uid")
	}
	p, err := pathTo(kube.Pods, w.GetNamespace(), w.GetName(), "")
	if err != nil {
		return refused(err)
	}
	options.Kind, options.APIVersion = "DeleteOptions", "v1"
	body, err := json.Marshal(&options)
	if err != nil {
		return refused(apierrors.NewBadRequest(err.Error()))
	}
	resp, err := s.do(ctx, http.MethodDelete, p, "application/json", body)
	if err == nil && (resp.Code == http.StatusNotFound || resp.Code == http.StatusConflict && otherUID(resp.Err())) {
		return accepted("")
	}
	return judge(resp, err)
}
