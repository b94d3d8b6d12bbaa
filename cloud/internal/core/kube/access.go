package kube

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const accessBound = 4096

// Access asks kube-apiserver for the rights of nodes, by a SubjectAccessReview as the node: the
// Node authorizer and RBAC decide, not cloudcore. Only permissions are cached, for a minute: a
// refusal may be gone the next moment, when the authorizer's graph has caught up. The rights that
// every node has, or every device, are asked for once (sharedAccess).
type Access struct {
	client kubernetes.Interface
	shared *sharedAccess

	mu      sync.Mutex
	allowed map[string]time.Time // until when
}

// NewAccess returns an Access.
func NewAccess(client kubernetes.Interface) *Access {
	a := &Access{client: client, allowed: map[string]time.Time{}}
	a.shared = newSharedAccess(client, a.ask)
	return a
}

// Run follows which nodes have the rights of devices, until ctx ends. Without it, and without the
// right to do so, each node's rights are asked for alone.
func (a *Access) Run(ctx context.Context) error {
	a.shared.devices.follow(ctx)
	return nil
}

// Allowed answers from the cache where it can: with kube-apiserver's answers of the last minute,
// about this node or about all nodes like it.
func (a *Access) Allowed(ctx context.Context, node types.NodeName, at Attributes) (Decision, error) {
	key := at.key(node)
	a.mu.Lock()
	until, ok := a.allowed[key]
	a.mu.Unlock()
	if ok && time.Now().Before(until) || a.shared.allows(ctx, node, at) {
		return Decision{Allowed: true}, nil
	}
	return a.Review(ctx, node, at)
}

// Review always asks. That the authorizer failed is an error, not a refusal.
func (a *Access) Review(ctx context.Context, node types.NodeName, at Attributes) (Decision, error) {
	d, err := a.ask(ctx, node, at)
	if err == nil {
		a.remember(at.key(node), d.Allowed)
	}
	return d, err
}

func (a *Access) ask(ctx context.Context, node types.NodeName, at Attributes) (Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	review, err := a.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, at.review(node), metav1.CreateOptions{})
	if err != nil {
		return Decision{}, fmt.Errorf("reviewing the access of node %s to %s: %w", node, at.Resource.Resource, err)
	}
	if e := review.Status.EvaluationError; e != "" && !review.Status.Allowed {
		return Decision{}, fmt.Errorf("reviewing the access of node %s to %s: %s", node, at.Resource.Resource, e)
	}
	return Decision{Allowed: review.Status.Allowed, Reason: review.Status.Reason}, nil
}

func (a *Access) remember(key string, allowed bool) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !allowed {
		delete(a.allowed, key)
		return
	}
	if len(a.allowed) >= accessBound { // at the bound: expired entries go first, then arbitrary ones
		for k, until := range a.allowed {
			if len(a.allowed) < accessBound && now.Before(until) {
				continue
			}
			delete(a.allowed, k)
			if len(a.allowed) < accessBound*3/4 {
				break
			}
		}
	}
	a.allowed[key] = now.Add(accessTTL)
}
