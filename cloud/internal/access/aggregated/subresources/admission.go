package subresources

import (
	"context"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
)

// unjudged refuses requests that a webhook or an admission policy of the cluster would have judged:
// kube-apiserver calls them for CONNECT to the pod's own subresource alone. Their selection by
// objects, conditions and parameters is not evaluated, so more is refused than they match, never
// less.
func (s subject) unjudged(ctx context.Context, client kubernetes.Interface) error {
	m := &matcher{subject: s, client: client}
	api := client.AdmissionregistrationV1()
	for _, look := range []struct {
		kind string
		find func(context.Context) (string, error)
	}{
		{"ValidatingWebhookConfiguration", func(ctx context.Context) (string, error) {
			l, err := api.ValidatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
			if err != nil {
				return "", err
			}
			for _, c := range l.Items {
				for _, w := range c.Webhooks {
					if yes, err := m.matches(ctx, w.NamespaceSelector, plain(w.Rules), nil); yes || err != nil {
						return c.Name, err
					}
				}
			}
			return "", nil
		}},
		{"MutatingWebhookConfiguration", func(ctx context.Context) (string, error) {
			l, err := api.MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
			if err != nil {
				return "", err
			}
			for _, c := range l.Items {
				for _, w := range c.Webhooks {
					if yes, err := m.matches(ctx, w.NamespaceSelector, plain(w.Rules), nil); yes || err != nil {
						return c.Name, err
					}
				}
			}
			return "", nil
		}},
		{"ValidatingAdmissionPolicy", func(ctx context.Context) (string, error) {
			l, err := api.ValidatingAdmissionPolicies().List(ctx, metav1.ListOptions{})
			if err != nil {
				return "", err
			}
			for _, p := range l.Items {
				if yes, err := m.matchesPolicy(ctx, p.Spec.MatchConstraints); yes || err != nil {
					return p.Name, err
				}
			}
			return "", nil
		}},
		{"MutatingAdmissionPolicy", func(ctx context.Context) (string, error) {
			l, err := api.MutatingAdmissionPolicies().List(ctx, metav1.ListOptions{})
			if err != nil {
				return "", err
			}
			for _, p := range l.Items {
				if yes, err := m.matchesPolicy(ctx, p.Spec.MatchConstraints); yes || err != nil {
					return p.Name, err
				}
			}
			return "", nil
		}},
	} {
		name, err := look.find(ctx)
		if err != nil {
			return apierrors.NewServiceUnavailable(fmt.Sprintf("reading whether a %s judges CONNECT to pods/%s, which this way passes by: %v", look.kind, s.subresource, err))
		}
		if name != "" {
			return apierrors.NewForbidden(resource, s.name, fmt.Errorf("the %s %s judges CONNECT to pods/%s, which this way passes by: "+
				"use kubectl %[3]s by one of the ways in docs/tunnel.md", look.kind, name, s.subresource))
		}
	}
	return nil
}

// matcher returns a function that matches one request.
type matcher struct {
	subject
	client kubernetes.Interface
	labels labels.Set // of the namespace, once they are needed
}

// rule is one of a webhook or of a policy.
type rule struct {
	admissionv1.RuleWithOperations
	names []string // empty: all
}

func plain(rules []admissionv1.RuleWithOperations) []rule {
	all := make([]rule, len(rules))
	for i, r := range rules {
		all[i] = rule{RuleWithOperations: r}
	}
	return all
}

func named(rules []admissionv1.NamedRuleWithOperations) []rule {
	all := make([]rule, len(rules))
	for i, r := range rules {
		all[i] = rule{r.RuleWithOperations, r.ResourceNames}
	}
	return all
}

// matchesPolicy ignores whether and how a policy is bound: a binding may come while a
// stream is open.
func (m *matcher) matchesPolicy(ctx context.Context, c *admissionv1.MatchResources) (bool, error) {
	if c == nil {
		return false, nil
	}
	return m.matches(ctx, c.NamespaceSelector, named(c.ResourceRules), named(c.ExcludeResourceRules))
}

func (m *matcher) matches(ctx context.Context, selector *metav1.LabelSelector, rules, excluded []rule) (bool, error) {
	if !slices.ContainsFunc(rules, m.covered) || slices.ContainsFunc(excluded, m.covered) {
		return false, nil
	}
	if selector == nil {
		return true, nil
	}
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return false, fmt.Errorf("reading a namespace selector: %w", err)
	}
	if parsed.Empty() {
		return true, nil
	}
	if m.labels == nil {
		ns, err := m.client.CoreV1().Namespaces().Get(ctx, m.namespace, metav1.GetOptions{})
		if err != nil {
			return false, fmt.Errorf("reading the namespace: %w", err)
		}
		m.labels = labels.Set(ns.Labels)
	}
	return parsed.Matches(m.labels), nil
}

// covered reports whether a rule is about CONNECT to the subresource.
func (m *matcher) covered(r rule) bool {
	has := func(all []string, any ...string) bool {
		return slices.ContainsFunc(all, func(one string) bool { return slices.Contains(any, one) })
	}
	operations := slices.ContainsFunc(r.Operations, func(o admissionv1.OperationType) bool {
		return o == admissionv1.Connect || o == admissionv1.OperationAll
	})
	scope := r.Scope == nil || *r.Scope == admissionv1.AllScopes || *r.Scope == admissionv1.NamespacedScope
	return operations && scope && has(r.APIGroups, "", "*") && has(r.APIVersions, "v1", "*") &&
		has(r.Resources, "pods/"+m.subresource, "pods/*", "*/"+m.subresource, "*/*") && (len(r.names) == 0 || slices.Contains(r.names, m.name))
}
