package relay

import (
	"context"
	"encoding/json"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// deletePod makes the last deletion of a pod, which the kubelet asks for when all its containers
// have ended. It always names the uid: the name may be another pod's by now. If the pod is gone
// already, that is success.
func (s *session) deletePod(ctx context.Context, w *topicpb.Write) outcome {
	if resourceOf(w) != kube.Pods || w.GetSubresource() != "" || w.GetVerb() != topicpb.Verb_DELETE {
		return refused(badWrite(w, "pods are deleted"))
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
		return refused(badWrite(w, "with the pod's uid"))
	}
	p, err := pathTo(kube.Pods, w.GetNamespace(), w.GetName(), "")
	if err != nil {
		return refused(err)
	}
	options.Kind, options.APIVersion = "DeleteOptions", "v1"
	o, resp := s.fenced(ctx, fencedWrite{
		key: key(w), uid: string(*options.Preconditions.UID), version: w.GetResourceVersion(),
		read: func(ctx context.Context) (*kube.Response, error) { return s.do(ctx, http.MethodGet, p, "", nil) },
		write: func(ctx context.Context, version string) (*kube.Response, error) {
			options.Preconditions.ResourceVersion = &version
			body, err := json.Marshal(&options)
			if err != nil {
				return nil, apierrors.NewBadRequest(err.Error())
			}
			return s.do(ctx, http.MethodDelete, p, "application/json", body)
		},
	})
	if err := o.err; err != nil && (apierrors.IsNotFound(err) || otherUID(err)) {
		return accepted("")
	}
	if resp != nil && o.accepted() {
		s.versions.forget(key(w))
	}
	return o
}
