package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// callTimeout bounds each call of kube-apiserver that is no watch.
	callTimeout = 10 * time.Second
	// How long an answer of Followable is cached. A missing resource may be there the next moment.
	followableTTL    = 5 * time.Minute
	notFollowableTTL = 5 * time.Second
	// followableBound bounds the cache; at the bound it is cleared.
	followableBound = 1024
)

// Requested is the collections that nodes ask for: those of Informers, followed with cloudcore's
// own rights. How they fare does not count for Informers.Ready.
type Requested struct {
	informers *Informers

	mu      sync.Mutex
	answers map[schema.GroupVersionResource]followable
}

type followable struct {
	err   error
	until time.Time
}

// Requested returns the collections for nodes.
func (i *Informers) Requested() *Requested {
	return &Requested{informers: i, answers: map[schema.GroupVersionResource]followable{}}
}

// Open is Informers.Open on behalf of a node. Followable comes first.
func (r *Requested) Open(resource schema.GroupVersionResource) (store *Store, release func()) {
	return r.informers.open(resource, 0)
}

// Followable finds out whether cloudcore can follow a collection: kube-apiserver serves it in that
// version, and cloudcore may list and watch it. refused is why it can't, a Kubernetes Status error:
// BadRequest, NotFound, MethodNotAllowed or Forbidden. err is that there was no answer.
func (r *Requested) Followable(ctx context.Context, resource schema.GroupVersionResource) (refused, err error) {
	if r.informers.follows(resource) {
		return nil, nil
	}
	now := time.Now()
	r.mu.Lock()
	known, ok := r.answers[resource]
	r.mu.Unlock()
	if ok && now.Before(known.until) {
		return known.err, nil
	}
	refused, err = r.informers.client.followable(ctx, resource)
	if err != nil {
		return nil, err
	}
	ttl := followableTTL
	if refused != nil {
		ttl = notFollowableTTL
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.answers) >= followableBound {
		clear(r.answers)
	}
	r.answers[resource] = followable{refused, now.Add(ttl)}
	return refused, nil
}

// CatchUp calls done, once and in a goroutine of its own, when the copy of a collection is at
// version or later; if the watch doesn't bring it there soon, by a consistent read, which counts
// whatever its version is: the cluster may have gone back in time. It is tried until it succeeds or
// cancel is called. The collection must be open.
func (r *Requested) CatchUp(resource schema.GroupVersionResource, version uint64, done func()) (cancel func()) {
	i := r.informers
	i.mu.Lock()
	defer i.mu.Unlock()
	f := i.feeds[resource]
	if f == nil || i.ctx == nil {
		return func() {}
	}
	c := &catchUp{version: version, since: time.Now(), done: done}
	u := &f.catchUps
	u.mu.Lock()
	defer u.mu.Unlock()
	u.waiting = append(u.waiting, c)
	if !u.running {
		u.running = true
		ctx := i.ctx
		i.wg.Go(func() { f.catchUp(ctx) })
	}
	return func() { u.remove(c) }
}

// follows reports whether a collection is followed without errors.
func (i *Informers) follows(resource schema.GroupVersionResource) bool {
	i.mu.Lock()
	f := i.feeds[resource]
	i.mu.Unlock()
	return f != nil && f.store.HasSynced() && f.store.Failure() == nil
}

// followable asks kube-apiserver. RBAC has no versions, so discovery is asked first.
func (c *Client) followable(ctx context.Context, resource schema.GroupVersionResource) (refused, err error) {
	if err := checkNames(resource); err != nil {
		return apierrors.NewBadRequest(err.Error()), nil
	}
	if refused, err := c.served(ctx, resource); refused != nil || err != nil {
		return refused, err
	}
	for _, verb := range []string{"list", "watch"} {
		ok, reason, err := c.mayMyself(ctx, verb, resource)
		if err != nil {
			return nil, err
		}
		if !ok {
			why := fmt.Errorf("cloudcore itself may not %s them: %s", verb, reason)
			return apierrors.NewForbidden(resource.GroupResource(), "", why), nil
		}
	}
	return nil, nil
}

// checkNames refuses names that can't be part of a path.
func checkNames(resource schema.GroupVersionResource) error {
	if resource.Group != "" && len(validation.IsDNS1123Subdomain(resource.Group)) > 0 {
		return fmt.Errorf("%q is no API group", shortened(resource.Group))
	}
	if len(validation.IsDNS1035Label(resource.Version)) > 0 {
		return fmt.Errorf("%q is no API version", shortened(resource.Version))
	}
	if len(validation.IsDNS1123Label(resource.Resource)) > 0 {
		return fmt.Errorf("%q is no resource", shortened(resource.Resource))
	}
	return nil
}

// shortened bounds a device's text in logs and answers.
func shortened(s string) string { return s[:min(len(s), 64)] }

// served asks discovery whether a resource exists in that version and can be listed and watched.
func (c *Client) served(ctx context.Context, resource schema.GroupVersionResource) (refused, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	path := "/apis/" + resource.Group + "/" + resource.Version
	if resource.Group == "" {
		path = "/api/" + resource.Version
	}
	answer, err := c.Do(ctx, Identity{}, Request{Method: http.MethodGet, Path: path})
	if err != nil {
		return nil, fmt.Errorf("discovery of %s: %w", resource.GroupVersion(), err)
	}
	missing := apierrors.NewGenericServerResponse(http.StatusNotFound, "list", resource.GroupResource(), "",
		fmt.Sprintf("kube-apiserver serves no %s in %s", resource.Resource, resource.GroupVersion()), 0, true)
	if answer.Code == http.StatusNotFound {
		return missing, nil
	}
	if err := answer.Err(); err != nil {
		return nil, fmt.Errorf("discovery of %s: %w", resource.GroupVersion(), err)
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(answer.Body, &list); err != nil {
		return nil, fmt.Errorf("discovery of %s: %w", resource.GroupVersion(), err)
	}
	for _, r := range list.APIResources {
		if r.Name != resource.Resource {
			continue
		}
		for _, verb := range []string{"list", "watch"} {
			if !slices.Contains(r.Verbs, verb) {
				return apierrors.NewMethodNotSupported(resource.GroupResource(), verb), nil
			}
		}
		return nil, nil
	}
	return missing, nil
}

// mayMyself asks whether cloudcore's own account may do something with all of a collection.
func (c *Client) mayMyself(ctx context.Context, verb string, resource schema.GroupVersionResource) (ok bool, reason string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	review, err := c.typed.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Group: resource.Group, Version: resource.Version, Resource: resource.Resource,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, "", fmt.Errorf("reviewing cloudcore's own access to %s: %w", resource.Resource, err)
	}
	if e := review.Status.EvaluationError; e != "" && !review.Status.Allowed {
		return false, "", fmt.Errorf("reviewing cloudcore's own access to %s: %s", resource.Resource, e)
	}
	return review.Status.Allowed, review.Status.Reason, nil
}
