package app

import (
	"cmp"
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/edge/internal/meta"
	"github.com/skerry-io/skerry/edge/internal/object"
	"github.com/skerry-io/skerry/edge/internal/podhealth"
)

// podHealth is how this device's pods are, and what is wrong by the conditions of its Node; nil where
// the device holds no pods yet.
func podHealth(ctx context.Context, m *meta.Manager, node string) (*podhealth.Status, []string) {
	pods, err := held[*corev1.Pod](ctx, m, "pods", "spec.nodeName", node)
	if err != nil {
		return nil, nil
	}
	data := m.Status()
	f := podhealth.Facts{Pods: pods, Withheld: map[types.UID]string{}, Restarts: map[types.UID]podhealth.Restart{}, Warnings: map[types.UID]*corev1.Event{}}
	for _, w := range data.Withheld {
		f.Withheld[w.UID] = w.Reason
	}
	for _, r := range data.Restarts {
		f.Restarts[r.UID] = podhealth.Restart{Reason: r.Reason, For: r.For, Ends: r.Ends, NotBefore: r.NotBefore}
	}
	events, _ := held[*corev1.Event](ctx, m, "events", "type", corev1.EventTypeWarning) // none: fewer reasons are known
	for _, e := range events {
		if last := f.Warnings[e.InvolvedObject.UID]; last == nil || happened(last) < happened(e) {
			f.Warnings[e.InvolvedObject.UID] = e
		}
	}
	status := podhealth.Of(f)
	var problems []string
	nodes, _ := held[*corev1.Node](ctx, m, "nodes", "metadata.name", node)
	for _, n := range nodes {
		problems = append(problems, podhealth.NodeProblems(n)...)
	}
	return &status, problems
}

func happened(e *corev1.Event) int64 {
	return cmp.Or(max(e.LastTimestamp.Unix(), e.EventTime.Unix(), e.CreationTimestamp.Unix()), 0)
}

// held lists what the device holds of a resource whose field has a value.
func held[T runtime.Object](ctx context.Context, m *meta.Manager, resource, field, value string) (all []T, err error) {
	items, _, err := m.List(ctx, object.Selection{
		Resource: corev1.SchemeGroupVersion.WithResource(resource), Labels: labels.Everything(), Fields: fields.OneTermEqualSelector(field, value),
	}, meta.ListOptions{Held: true})
	if err != nil {
		return nil, err
	}
	for _, o := range items {
		obj, err := object.Decode(o)
		if err != nil {
			continue // metamanager counts it
		}
		if t, ok := obj.(T); ok {
			all = append(all, t)
		}
	}
	return all, nil
}
