package operationset

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// atOnce bounds how many requests of a plan are open, and maxWrites how many changes of one
	// sort it makes before the next plan.
	atOnce    = 16
	maxWrites = 500
)

// apply makes all changes but those of statuses. more: it left some for the next call.
func (l *leadership) apply(ctx context.Context, s State, changes *Changes) (more bool, err error) {
	gone, err := l.gone(ctx, changes.Gone)
	if err != nil {
		return false, err
	}
	exists := map[string]bool{}
	for _, set := range s.Sets {
		exists[string(set.UID)] = true
	}
	for uid := range changes.Gone {
		exists[string(uid)] = !gone[uid]
	}
	changes.Delete = slices.DeleteFunc(changes.Delete, func(o *Operation) bool {
		uid := types.UID(o.Origin.UID)
		_, asked := changes.Gone[uid]
		return asked && !gone[uid]
	})
	for i := range changes.Record {
		changes.Record[i].Drop = slices.DeleteFunc(changes.Record[i].Drop, func(uid types.UID) bool { return !gone[uid] })
	}
	changes.Record = merged(changes.Record)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	do := func(n int, one func(i int) error) {
		more = more || n > maxWrites
		for i := range min(n, maxWrites) {
			g.Go(func() error {
				if err := one(i); err != nil && controller.ClassOf(err) != controller.Conflict {
					return err
				}
				return nil // after a conflict the watch will bring the newer version, and with it another plan
			})
		}
	}
	do(len(changes.Record), func(i int) error {
		return l.record(ctx, changes.Record[i], s, func(uid string) bool { return exists[uid] })
	})
	do(len(changes.Delete), func(i int) error { return l.delete(ctx, changes.Delete[i]) })
	do(len(changes.Cancel), func(i int) error { return l.cancel(ctx, changes.Cancel[i]) })
	do(len(changes.Expire), func(i int) error { return l.setKind.DeleteUnchanged(ctx, changes.Expire[i].NodeOperationSet) })
	do(len(changes.Create), func(i int) error { return l.create(ctx, changes.Create[i]) })
	return more, g.Wait()
}

// merged is one record a node.
func merged(records []Record) (out []Record) {
	at := map[string]int{}
	for _, r := range records {
		if len(r.Add) == 0 && len(r.Drop) == 0 {
			continue
		}
		if i, ok := at[r.Node]; ok {
			out[i].Add, out[i].Drop = append(out[i].Add, r.Add...), append(out[i].Drop, r.Drop...)
			continue
		}
		at[r.Node] = len(out)
		out = append(out, r)
	}
	return out
}

// gone asks which sets are gone: the watch may be older than an object that names a set.
func (l *leadership) gone(ctx context.Context, sets map[types.UID]string) (map[types.UID]bool, error) {
	gone := map[types.UID]bool{}
	for uid, name := range sets {
		set, err := l.setKind.GetLive(ctx, kube.Key{Name: name})
		if err != nil {
			return nil, err
		}
		gone[uid] = set == nil || set.UID != uid
	}
	return gone, nil
}

// create makes an operation, unless the node has a result by now: the watch may be older than one
// that another replica wrote.
func (l *leadership) create(ctx context.Context, change Create) error {
	node, err := l.nodeKind.GetLive(ctx, kube.Key{Name: change.Node.Name})
	if err != nil || node == nil {
		return err
	}
	if n := NewNode(node); n.Unread || n.ended(change.Set) != nil || !n.linked() && !n.rescued(time.Now(), change.Set.Spec.Template.Operation) {
		return nil
	}
	origin, err := json.Marshal(change.Origin)
	if err != nil {
		return fmt.Errorf("encoding the origin of an operation: %w", err)
	}
	o := &v1alpha1.NodeOperation{
		ObjectMeta: metav1.ObjectMeta{
			Name: OperationName(change.Origin, node.Name), Labels: map[string]string{v1alpha1.OperationSetLabel: change.Set.Name},
			Annotations: map[string]string{v1alpha1.OperationSetAnnotation: string(origin)},
		},
		Spec: change.Set.Spec.Template.Spec(node.Name),
	}
	if v1alpha1.RightOf(o.Spec.Operation) != "" { // the device may have rejected the digest
		o.Spec.Retry = change.Set.Spec.Retry
	}
	if by := change.Set.Annotations[v1alpha1.RequestedByAnnotation]; by != "" {
		o.Annotations[v1alpha1.RequestedByAnnotation] = by
	}
	err = l.operationKind.Create(ctx, o)
	if apierrors.IsAlreadyExists(err) {
		return l.taken(ctx, change, o.Name)
	}
	if err == nil {
		l.nodeKind.Event(node, corev1.EventTypeNormal, "OperationCreated",
			fmt.Sprintf("NodeOperationSet %s: %s (wave %d)", change.Set.Name, describe(change.Set, ""), change.Origin.Wave+1))
	}
	return err
}

// taken looks at an operation that has the name of one to make. It is usually the one, and the
// watch will bring it. An object of another origin would hold the wave up for ever.
func (l *leadership) taken(ctx context.Context, change Create, name string) error {
	o, err := l.operationKind.GetLive(ctx, kube.Key{Name: name})
	if err != nil || o == nil || NewOperation(o).of(change.Set.UID) { // the plan deletes the one of another machine first
		return err
	}
	return l.record(ctx, Record{Node: change.Node.Name, Add: []v1alpha1.OperationSetResult{{
		OperationSetOrigin: change.Origin, Result: v1alpha1.ResultFailed, Reason: "NameTaken", At: metav1.Now().Rfc3339Copy(),
		Message: cut("a NodeOperation of another origin is named "+name, maxText),
	}}}, State{Sets: []*Set{change.Set}}, func(string) bool { return true })
}

// record changes the annotation of a node on the condition that the Node is as it was read.
func (l *leadership) record(ctx context.Context, r Record, s State, exists func(uid string) bool) error {
	node, err := l.nodeKind.GetLive(ctx, kube.Key{Name: r.Node})
	if err != nil || node == nil {
		return err
	}
	n := NewNode(node)
	results := With(n.Results, r, exists)
	if n.Unread || equality.Semantic.DeepEqual(results, n.Results) {
		return nil
	}
	var value any // nil removes the annotation
	if len(results) > 0 {
		text, err := json.Marshal(results)
		if err != nil {
			return fmt.Errorf("encoding the results of node %s: %w", r.Node, err)
		}
		value = string(text)
	}
	if err := l.nodeKind.Patch(ctx, kube.Key{Name: r.Node}, "", map[string]any{"metadata": map[string]any{
		"uid": node.UID, "resourceVersion": node.ResourceVersion, "annotations": map[string]any{v1alpha1.OperationSetsAnnotation: value},
	}}); err != nil {
		return err
	}
	for _, add := range r.Add {
		i := slices.IndexFunc(s.Sets, func(s *Set) bool { return string(s.UID) == add.UID })
		if i < 0 || add.Result == v1alpha1.ResultDone {
			continue
		}
		l.setKind.Event(s.Sets[i].NodeOperationSet, corev1.EventTypeWarning, "Operation"+string(add.Result),
			fmt.Sprintf("%s: %s: %s: %s", r.Node, describe(s.Sets[i], s.digest(r.Node, add)), add.Reason, add.Message))
	}
	return nil
}

// delete deletes an operation that is still as it was seen.
func (l *leadership) delete(ctx context.Context, o *Operation) error {
	return l.operationKind.DeleteUnchanged(ctx, &v1alpha1.NodeOperation{ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: o.UID, ResourceVersion: o.Revision}})
}

// cancel cancels an operation for its set: its end is no result.
func (l *leadership) cancel(ctx context.Context, o *Operation) error {
	origin := *o.Origin
	origin.Withdrawn = true
	text, err := json.Marshal(origin)
	if err != nil {
		return fmt.Errorf("encoding the origin of an operation: %w", err)
	}
	return l.operationKind.Patch(ctx, kube.Key{Name: o.Name}, "", map[string]any{
		"metadata": map[string]any{"uid": o.UID, "resourceVersion": o.Revision, "annotations": map[string]any{v1alpha1.OperationSetAnnotation: string(text)}},
		"spec":     map[string]any{"cancel": true},
	})
}
