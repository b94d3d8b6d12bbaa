package campaign

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

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

// run works until ctx ends. It repeats its levels when edgecore has its agents do so, and from the
// end of work on now and then, where a damaged store may have forgotten them.
func (a *agent) run(ctx, work context.Context) {
	for a.uid == "" && ctx.Err() == nil {
		a.make(ctx)
		pause(ctx, 300*time.Millisecond)
	}
	draw := a.s.draw("agent " + a.edge.name)
	for work.Err() == nil && ctx.Err() == nil {
		a.last++
		a.s.report(ctx, a.edge, level{operations, a.edge.name, a.uid}, a.last)
		a.repeated(ctx)
		pause(work, time.Duration(100+draw.IntN(900))*time.Millisecond)
	}
	forgets := func(f Fault) bool { return slices.Contains([]Fault{BadPage, BadRecord, Rot}, f) }
	damaged := slices.ContainsFunc(a.s.options.Faults, forgets)
	for ; ctx.Err() == nil; pause(ctx, 2*time.Second) {
		if damaged {
			a.repeat(ctx)
		}
		a.repeated(ctx)
	}
}

// repeated repeats all levels where the device asks for that.
func (a *agent) repeated(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	raw, err := a.edge.client.CoreV1().RESTClient().Get().AbsPath("/repeat").Do(ctx).Raw()
	if err != nil {
		return // it is down
	}
	if asked := string(raw); asked != "0" && a.repeat(ctx) {
		_ = a.edge.client.CoreV1().RESTClient().Post().AbsPath("/repeat", asked).Do(ctx).Error() // without an answer it asks again
	}
}

// repeat returns whether all levels are on the device's disk.
func (a *agent) repeat(ctx context.Context) bool {
	all := a.s.report(ctx, a.edge, level{operations, a.edge.name, a.uid}, a.last)
	for _, l := range a.edge.onces.list() {
		all = a.s.report(ctx, a.edge, l, 1) && all
	}
	return all
}

func (a *agent) make(ctx context.Context) {
	made, err := a.s.reported[operations].Create(ctx, operationOf(a.edge.name, a.edge.name), metav1.CreateOptions{})
	if err != nil {
		made, err = a.s.reported[operations].Get(ctx, a.edge.name, metav1.GetOptions{})
	}
	if err == nil {
		a.uid = made.GetUID()
	}
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
