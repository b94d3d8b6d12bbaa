package campaign

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/campaign/history"
)

// agent stands for the agents of an edge: it counts up in the device's report of a NodeOperation of
// the device's name.
type agent struct {
	s    *system
	edge *edge
	uid  types.UID
	last int64
}

// run works until ctx ends. From the end of work on it repeats its level now and then, where a
// restored cluster or a damaged store may have forgotten it.
func (a *agent) run(ctx, work context.Context) {
	for a.uid == "" && ctx.Err() == nil {
		a.make(ctx)
		pause(ctx, 300*time.Millisecond)
	}
	draw := a.s.draw("agent " + a.edge.name)
	for work.Err() == nil && ctx.Err() == nil {
		a.last++
		a.report(ctx, a.last)
		pause(work, time.Duration(100+draw.IntN(900))*time.Millisecond)
	}
	forgets := func(f Fault) bool { return slices.Contains([]Fault{OlderCopy, BadPage, BadRecord, Rot}, f) }
	for ; ctx.Err() == nil && slices.ContainsFunc(a.s.options.Faults, forgets); pause(ctx, 2*time.Second) {
		a.report(ctx, a.last)
	}
}

func (a *agent) make(ctx context.Context) {
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.SchemeGroupVersion.String(), "kind": "NodeOperation", "metadata": map[string]any{"name": a.edge.name},
		"spec": map[string]any{"nodeName": a.edge.name, "operation": "Drain"},
	}}
	made, err := a.s.operations.Create(ctx, o, metav1.CreateOptions{})
	if err != nil {
		made, err = a.s.operations.Get(ctx, a.edge.name, metav1.GetOptions{})
	}
	if err == nil {
		a.uid = made.GetUID()
	}
}

func (a *agent) report(ctx context.Context, value int64) {
	r := history.Record{Kind: history.Put, Who: a.edge.name, Resource: operations, Name: namespace + "/" + a.edge.name, UID: string(a.uid), Value: value}
	a.s.put(ctx, r, func(ctx context.Context) error {
		return a.edge.client.CoreV1().RESTClient().Post().AbsPath("/report", operations, a.edge.name, string(a.uid)).
			Body(fmt.Appendf(nil, `{"output":"%d"}`, value)).Do(ctx).Error()
	})
}

// watchReady records when a node that has been Ready is no longer, until ctx ends.
func (s *system) watchReady(ctx context.Context, e *edge) {
	one := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", e.name).String()}
	for was := corev1.ConditionStatus(""); ctx.Err() == nil; pause(ctx, 500*time.Millisecond) {
		once, cancel := context.WithTimeout(ctx, requestPatience)
		list, err := s.client.CoreV1().Nodes().List(once, one)
		cancel()
		if err != nil || len(list.Items) == 0 {
			continue
		}
		is := readiness(list.Items[0])
		if was == corev1.ConditionTrue && is != was {
			s.recorder.Add(history.Record{Kind: history.Unready, Who: e.name, Resource: "nodes", Name: namespace + "/" + e.name, Node: e.name})
		}
		was = is
	}
}
