package kube

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Attributes is what a node wants to do.
type Attributes struct {
	Verb        string
	Resource    schema.GroupVersionResource
	Subresource string
	Namespace   string
	Name        string
	Fields      fields.Selector // nil: everything
	Labels      labels.Selector
}

// Decision is what Kubernetes answered.
type Decision struct {
	Allowed bool
	Reason  string
}

const (
	accessTTL   = time.Minute
	accessBound = 4096
)

// Access asks kube-apiserver what nodes may see, by a SubjectAccessReview as the node: the Node authorizer and RBAC decide, not cloudcore.
// Only permissions are remembered, for a minute: a refusal may be gone the next moment, when the authorizer's graph has caught up.
type Access struct {
	client kubernetes.Interface

	mu      sync.Mutex
	allowed map[string]time.Time // until when
}

// NewAccess returns an Access.
func NewAccess(client kubernetes.Interface) *Access {
	return &Access{client: client, allowed: map[string]time.Time{}}
}

// Allowed answers from memory where it can.
func (a *Access) Allowed(ctx context.Context, node types.NodeName, at Attributes) (Decision, error) {
	key := at.key(node)
	a.mu.Lock()
	until, ok := a.allowed[key]
	a.mu.Unlock()
	if ok && time.Now().Before(until) {
		return Decision{Allowed: true}, nil
	}
	return a.Review(ctx, node, at)
}

// Review always asks. That the authorizer failed is an error, not a refusal.
func (a *Access) Review(ctx context.Context, node types.NodeName, at Attributes) (Decision, error) {
	resource := &authorizationv1.ResourceAttributes{
		Verb: at.Verb, Group: at.Resource.Group, Version: at.Resource.Version, Resource: at.Resource.Resource, Subresource: at.Subresource,
		Namespace: at.Namespace, Name: at.Name,
	}
	if at.Fields != nil && !at.Fields.Empty() {
		resource.FieldSelector = &authorizationv1.FieldSelectorAttributes{Requirements: fieldRequirements(at.Fields)}
	}
	if at.Labels != nil && !at.Labels.Empty() {
		resource.LabelSelector = &authorizationv1.LabelSelectorAttributes{Requirements: labelRequirements(at.Labels)}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	review, err := a.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: NodeUser(node), Groups: nodeGroups(), ResourceAttributes: resource},
	}, metav1.CreateOptions{})
	if err != nil {
		return Decision{}, fmt.Errorf("reviewing the access of node %s to %s: %w", node, at.Resource.Resource, err)
	}
	if e := review.Status.EvaluationError; e != "" && !review.Status.Allowed {
		return Decision{}, fmt.Errorf("reviewing the access of node %s to %s: %s", node, at.Resource.Resource, e)
	}
	d := Decision{Allowed: review.Status.Allowed, Reason: review.Status.Reason}
	a.remember(at.key(node), d.Allowed)
	return d, nil
}

func (a *Access) remember(key string, allowed bool) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !allowed {
		delete(a.allowed, key)
		return
	}
	if len(a.allowed) >= accessBound { // at the bound: what has expired goes first, then whatever
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

func (a Attributes) key(node types.NodeName) string {
	parts := []string{string(node), a.Verb, a.Resource.Group, a.Resource.Version, a.Resource.Resource, a.Subresource, a.Namespace, a.Name, "", ""}
	if a.Fields != nil {
		parts[8] = a.Fields.String()
	}
	if a.Labels != nil {
		parts[9] = a.Labels.String()
	}
	return strings.Join(parts, "\x00")
}

func fieldRequirements(s fields.Selector) []metav1.FieldSelectorRequirement {
	var out []metav1.FieldSelectorRequirement
	for _, r := range s.Requirements() {
		// A field selector is only ever an equality or its opposite; the review has set operators for both.
		op := metav1.FieldSelectorOpIn
		if r.Operator == selection.NotEquals {
			op = metav1.FieldSelectorOpNotIn
		}
		out = append(out, metav1.FieldSelectorRequirement{Key: r.Field, Operator: op, Values: []string{r.Value}})
	}
	return out
}

func labelRequirements(s labels.Selector) []metav1.LabelSelectorRequirement {
	requirements, _ := s.Requirements()
	var out []metav1.LabelSelectorRequirement
	for _, r := range requirements {
		op := metav1.LabelSelectorOpIn
		switch r.Operator() {
		case selection.NotIn, selection.NotEquals:
			op = metav1.LabelSelectorOpNotIn
		case selection.Exists:
			op = metav1.LabelSelectorOpExists
		case selection.DoesNotExist:
			op = metav1.LabelSelectorOpDoesNotExist
		case selection.GreaterThan, selection.LessThan:
			continue // the review has no such operator; to leave one out asks for more, never for less
		}
		out = append(out, metav1.LabelSelectorRequirement{Key: r.Key(), Operator: op, Values: r.ValuesUnsorted()})
	}
	return out
}
