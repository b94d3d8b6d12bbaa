package drain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/rerun"
)

const (
	// settle is how long further changes are waited for: operations for a whole fleet come
	// in waves.
	settle = 250 * time.Millisecond
	// retry is how soon what failed is tried again.
	retry = 10 * time.Second
)

// Client makes requests at kube-apiserver, as cloudcore itself.
type Client interface {
	Do(ctx context.Context, as kube.Identity, r kube.Request) (*kube.Response, error)
}

// Store is a collection that is followed; a *kube.Store.
type Store interface {
	Synced() <-chan struct{}
	Each(sel *kube.Selection, fn func(*kube.Object) bool)
	Observe(changed func(old, new *kube.Object)) (cancel func())
}

// Unknown reports in the status of a NodeOperation that no device will take it up: the cluster has
// no edge node of that name. It touches no operation that a device has reported of. One runs at a
// time, under a Lease.
type Unknown struct {
	client     Client
	operations Store
	nodes      Store
}

// NewUnknown makes an Unknown. It starts nothing.
func NewUnknown(client Client, operations, nodes Store) *Unknown {
	return &Unknown{client, operations, nodes}
}

// Run works until ctx ends.
func (u *Unknown) Run(ctx context.Context) error {
	loop := rerun.New(func(ctx context.Context) (time.Duration, error) { return 0, u.look(ctx) }, rerun.Config{
		Settle: settle, RetryMin: retry, RetryMax: retry,
		Failed: func(ctx context.Context, err error, in time.Duration) {
			klog.FromContext(ctx).V(2).Info("Failed to update operations of unknown nodes, retrying", "in", in, "err", err)
		},
	})
	defer u.operations.Observe(func(_, now *kube.Object) {
		if now != nil {
			loop.Wake()
		}
	})()
	defer u.nodes.Observe(func(old, now *kube.Object) {
		if old == nil || now == nil || edge(old) != edge(now) {
			loop.Wake()
		}
	})()
	for _, s := range []Store{u.operations, u.nodes} {
		select {
		case <-s.Synced():
		case <-ctx.Done():
			return nil
		}
	}
	loop.Run(ctx)
	return nil
}

func edge(o *kube.Object) bool { return v1alpha1.IsEdge(o.Labels) }

// look goes through all operations, and writes those whose word about the node is not true.
func (u *Unknown) look(ctx context.Context) error {
	everything := &kube.Selection{Labels: labels.Everything(), Fields: fields.Everything()}
	edges, others := map[string]bool{}, map[string]bool{}
	u.nodes.Each(everything, func(n *kube.Object) bool {
		if edge(n) {
			edges[n.Name] = true
		} else {
			others[n.Name] = true
		}
		return true
	})
	wrong := map[string]string{} // what to say; "" for nothing any more
	var errs []error
	u.operations.Each(everything, func(o *kube.Object) bool {
		var op v1alpha1.NodeOperation
		if err := json.Unmarshal(o.Raw, &op); err != nil {
			errs = append(errs, fmt.Errorf("reading NodeOperation %s: %w", o.Name, err))
			return true
		}
		why := ""
		switch name := op.Spec.NodeName; {
		case others[name]:
			why = fmt.Sprintf("node %s is no edge node: no device will take the operation up", name)
		case !edges[name]:
			why = fmt.Sprintf("the cluster has no node %s: no device will take the operation up", name)
		}
		if !reported(&op) && said(&op) != why {
			wrong[o.Name] = why
		}
		return true
	})
	for name, why := range wrong {
		errs = append(errs, u.say(ctx, name, why))
	}
	return errors.Join(errs...)
}

// reported tells whether a device has reported an operation: it knows since when it has it.
func reported(o *v1alpha1.NodeOperation) bool {
	return o.Status.RequestedAt != nil || o.Status.Phase != ""
}

// said is what the status says of the node; "" for nothing.
func said(o *v1alpha1.NodeOperation) string {
	if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.OperationDone); c != nil && c.Reason == v1alpha1.OperationNodeUnknown {
		return c.Message
	}
	return ""
}

// say reads the newest version and writes on the condition that it still is.
func (u *Unknown) say(ctx context.Context, name, why string) error {
	r := v1alpha1.Resource(v1alpha1.NodeOperations)
	path := "/apis/" + r.Group + "/" + r.Version + "/" + r.Resource + "/" + url.PathEscape(name)
	resp, err := u.client.Do(ctx, kube.Identity{}, kube.Request{Method: http.MethodGet, Path: path})
	if err != nil || resp.Code == http.StatusNotFound {
		return err
	}
	if err := resp.Err(); err != nil {
		return err
	}
	var o v1alpha1.NodeOperation
	if err := json.Unmarshal(resp.Body, &o); err != nil {
		return fmt.Errorf("reading NodeOperation %s: %w", name, err)
	}
	if reported(&o) || said(&o) == why {
		return nil
	}
	if why == "" {
		meta.RemoveStatusCondition(&o.Status.Conditions, v1alpha1.OperationDone)
	} else {
		meta.SetStatusCondition(&o.Status.Conditions, metav1.Condition{
			Type: v1alpha1.OperationDone, Status: metav1.ConditionFalse, Reason: v1alpha1.OperationNodeUnknown, Message: why, ObservedGeneration: o.Generation,
		})
	}
	body, err := json.Marshal(&o)
	if err != nil {
		return fmt.Errorf("writing NodeOperation %s: %w", name, err)
	}
	resp, err = u.client.Do(ctx, kube.Identity{}, kube.Request{Method: http.MethodPut, Path: path + "/status", ContentType: "application/json", Body: body})
	if err != nil || resp.Code == http.StatusNotFound {
		return err
	}
	return resp.Err()
}
