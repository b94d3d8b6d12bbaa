package podhealth

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// Source lists cached objects; a *metamanager.Manager.
type Source interface {
	List(ctx context.Context, s object.Selection, options metamanager.ListOptions) (items []object.Object, version uint64, err error)
	Status() metamanager.Status
}

// Read returns the status of a node's pods from metamanager's cache, and the problems in its Node's
// conditions, at a time; nil if no pods are cached yet.
func Read(ctx context.Context, m Source, node string, now time.Time) (*Status, []string) {
	pods, err := held[*corev1.Pod](ctx, m, "pods", "spec.nodeName", node)
	if err != nil {
		return nil, nil
	}
	data := m.Status()
	f := Facts{Pods: pods, Withheld: map[types.UID]string{}, Restarts: map[types.UID]Restart{}, Warnings: map[types.UID]*corev1.Event{}}
	for _, w := range data.Withheld {
		f.Withheld[w.UID] = w.Reason
	}
	for _, r := range data.Restarts {
		f.Restarts[r.UID] = Restart{Reason: r.Reason, For: r.For, Ends: r.Ends, NotBefore: r.NotBefore}
	}
	status := Of(f)
	if len(status.NotRunning) == 0 {
		return &status, problems(ctx, m, node, now)
	}
	events, _ := held[*corev1.Event](ctx, m, "events", "type", corev1.EventTypeWarning) // on an error fewer reasons are known
	for _, e := range events {
		if last := f.Warnings[e.InvolvedObject.UID]; last == nil || happened(last) < happened(e) {
			f.Warnings[e.InvolvedObject.UID] = e
		}
	}
	status = Of(f)
	return &status, problems(ctx, m, node, now)
}

func problems(ctx context.Context, m Source, node string, now time.Time) (problems []string) {
	nodes, _ := held[*corev1.Node](ctx, m, "nodes", "metadata.name", node)
	for _, n := range nodes {
		problems = append(problems, NodeProblems(n, now)...)
	}
	return problems
}

func happened(e *corev1.Event) int64 {
	return max(e.LastTimestamp.Unix(), e.EventTime.Unix(), e.CreationTimestamp.Unix())
}

// held lists the cached objects of a resource whose field has a value.
func held[T runtime.Object](ctx context.Context, m Source, resource, field, value string) (all []T, err error) {
	items, _, err := m.List(ctx, object.Selection{
		Resource: corev1.SchemeGroupVersion.WithResource(resource), Labels: labels.Everything(), Fields: fields.OneTermEqualSelector(field, value),
	}, metamanager.ListOptions{Held: true})
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
