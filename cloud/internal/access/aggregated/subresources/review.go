package subresources

import (
	"context"
	"errors"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
)

// subject is the request, as kube-apiserver's authorizers see it.
type subject struct {
	who             user.Info
	namespace, name string
	subresource     string
}

// review asks kube-apiserver whether the user may do that to the pod's own subresource.
func (s subject) review(ctx context.Context, client kubernetes.Interface, verb string) error {
	extra := make(map[string]authorizationv1.ExtraValue, len(s.who.GetExtra()))
	for k, v := range s.who.GetExtra() {
		extra[k] = v
	}
	answer, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: s.who.GetName(), Groups: s.who.GetGroups(), UID: s.who.GetUID(), Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: s.namespace, Verb: verb, Version: "v1", Resource: "pods", Subresource: s.subresource, Name: s.name,
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("reviewing the access of %q: %v", s.who.GetName(), err))
	}
	if answer.Status.Allowed && !answer.Status.Denied {
		return nil
	}
	why := fmt.Sprintf("User %q cannot %s resource \"pods/%s\" in API group \"\" in the namespace %q", s.who.GetName(), verb, s.subresource, s.namespace)
	if answer.Status.Reason != "" {
		why += ": " + answer.Status.Reason
	}
	return apierrors.NewForbidden(resource, s.name, errors.New(why))
}
