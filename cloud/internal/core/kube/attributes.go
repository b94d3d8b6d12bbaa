package kube

import (
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
)

// Attributes describe a node's request, as a SubjectAccessReview does.
type Attributes struct {
	Verb        string
	Resource    schema.GroupVersionResource
	Subresource string
	Namespace   string
	Name        string
	Fields      fields.Selector // nil: everything
	Labels      labels.Selector
}

// Decision is the answer of Kubernetes.
type Decision struct {
	Allowed bool
	Reason  string
}

// review is the question whether the node may.
func (a Attributes) review(node types.NodeName) *authorizationv1.SubjectAccessReview {
	resource := &authorizationv1.ResourceAttributes{
		Verb: a.Verb, Group: a.Resource.Group, Version: a.Resource.Version, Resource: a.Resource.Resource, Subresource: a.Subresource,
		Namespace: a.Namespace, Name: a.Name,
	}
	if a.Fields != nil && !a.Fields.Empty() {
		resource.FieldSelector = &authorizationv1.FieldSelectorAttributes{Requirements: fieldRequirements(a.Fields)}
	}
	if a.Labels != nil && !a.Labels.Empty() {
		resource.LabelSelector = &authorizationv1.LabelSelectorAttributes{Requirements: labelRequirements(a.Labels)}
	}
	return &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: NodeUser(node), Groups: nodeGroups(), ResourceAttributes: resource},
	}
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
		// A field selector is only ever an equality or its opposite; the review has set
		// operators for both.
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
