package api

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"sync"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// maxGrants bounds what is remembered; at the bound all is forgotten and asked again as it is needed, which is rare and simple.
const maxGrants = 4096

// grants remembers what kube-apiserver said about service accounts. On line it is asked each time a list or watch begins, with the account's own token: so the
// token is checked with it. Without a link the last answer for the same token counts; a token or an action that was never seen on line is refused.
type grants struct {
	backend Backend
	mu      sync.Mutex
	known   map[grant]bool
}

// action is what is to be allowed.
type action struct {
	verb      string
	resource  schema.GroupVersionResource
	namespace string
	name      string
}

type grant struct {
	token  [sha256.Size]byte // the token itself isn't kept
	action action
}

func newGrants(backend Backend) *grants { return &grants{backend: backend, known: map[grant]bool{}} }

// check returns nil where the bearer of token may do a.
func (g *grants) check(ctx context.Context, token string, a action) error {
	key := grant{sha256.Sum256([]byte(token)), a}
	allowed, err := g.ask(ctx, token, a)
	switch {
	case err == nil:
		g.mu.Lock()
		if len(g.known) >= maxGrants {
			clear(g.known)
		}
		g.known[key] = allowed
		g.mu.Unlock()
	case apierrors.IsUnauthorized(err):
		g.mu.Lock()
		delete(g.known, key)
		g.mu.Unlock()
		return err
	default:
		g.mu.Lock()
		known, ok := g.known[key]
		g.mu.Unlock()
		if !ok {
			return err // no link, and nothing known: come back
		}
		allowed = known
	}
	if !allowed {
		return apierrors.NewForbidden(a.resource.GroupResource(), a.name, errNotAllowed(a.verb))
	}
	return nil
}

type errNotAllowed string

func (e errNotAllowed) Error() string { return "this service account may not " + string(e) + " it" }

// ask has kube-apiserver judge the bearer of token: every account may review itself (ClusterRole system:basic-user).
func (g *grants) ask(ctx context.Context, token string, a action) (bool, error) {
	body, err := json.Marshal(&authorizationv1.SelfSubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: a.verb, Group: a.resource.Group, Version: a.resource.Version, Resource: a.resource.Resource, Namespace: a.namespace, Name: a.name,
		}},
	})
	if err != nil {
		return false, err
	}
	answer, err := g.backend.Request(ctx, &topicpb.APIRequest{
		Method:      http.MethodPost,
		Path:        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
		Accept:      runtime.ContentTypeJSON,
		ContentType: runtime.ContentTypeJSON,
		Body:        body,
		BearerToken: token,
	})
	if err != nil {
		return false, err
	}
	if code := answer.GetCode(); code != http.StatusCreated && code != http.StatusOK {
		return false, answerError(answer)
	}
	var review authorizationv1.SelfSubjectAccessReview
	if err := json.Unmarshal(answer.GetBody(), &review); err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}

// answerError is the Status that kube-apiserver answered with.
func answerError(answer *topicpb.APIResponse) error {
	var status metav1.Status
	if err := json.Unmarshal(answer.GetBody(), &status); err != nil || status.Kind != "Status" {
		status = metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonUnknown, Message: string(answer.GetBody())}
	}
	if status.Code == 0 {
		status.Code = answer.GetCode()
	}
	return &apierrors.StatusError{ErrStatus: status}
}
