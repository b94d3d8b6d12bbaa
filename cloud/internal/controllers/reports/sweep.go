package reports

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/rerun"
)

const (
	sweepAfter = time.Second // nodes often go in numbers
	sweepAgain = 10 * time.Second
	pageSize   = 200
)

// Nodes is the collection of nodes; a *kube.Store.
type Nodes interface {
	Synced() <-chan struct{}
	Get(key kube.Key) *kube.Object
	Observe(changed func(old, new *kube.Object)) (cancel func())
}

// Sweep takes the entries of nodes that were deleted out of every status, until ctx ends: all
// objects are looked through at the start, and whenever a node goes. One replica at a time does so,
// under the Lease.
func (a *Aggregator) Sweep(ctx context.Context, nodes Nodes) error {
	exists := func(node string) bool { return nodes.Get(kube.Key{Name: node}) != nil }
	loop := rerun.New(func(ctx context.Context) (time.Duration, error) { return 0, a.sweep(ctx, exists) }, rerun.Config{
		Settle: sweepAfter, RetryMin: sweepAgain, RetryMax: sweepAgain,
		Failed: func(ctx context.Context, err error, retry time.Duration) {
			klog.FromContext(ctx).Info("Failed to remove deleted nodes from statuses, retrying", "in", retry, "err", err)
		},
	})
	defer nodes.Observe(func(_, now *kube.Object) {
		if now == nil {
			loop.Wake()
		}
	})()
	select {
	case <-nodes.Synced():
	case <-ctx.Done():
		return nil
	}
	loop.Run(ctx)
	return nil
}

func (a *Aggregator) sweep(ctx context.Context, exists func(string) bool) error {
	for _, kind := range a.kinds {
		resource := kind.Resource()
		next := ""
		for {
			q := fmt.Sprintf("limit=%d&continue=%s", pageSize, next)
			resp, err := a.client.Do(ctx, kube.Identity{}, kube.Request{
				Method: http.MethodGet, Path: "/apis/" + resource.Group + "/" + resource.Version + "/" + resource.Resource, Query: q,
			})
			if err != nil {
				return err
			}
			if resp.Code == http.StatusNotFound {
				break // the cluster has no such kind
			}
			if err := resp.Err(); err != nil {
				return err
			}
			var page struct {
				Metadata metav1.ListMeta   `json:"metadata"`
				Items    []json.RawMessage `json:"items"`
			}
			if err := json.Unmarshal(resp.Body, &page); err != nil {
				return fmt.Errorf("reading a list of %s: %w", resource.Resource, err)
			}
			for _, item := range page.Items {
				if err := a.sweepOne(ctx, kind, item, exists); err != nil {
					return err
				}
			}
			if next = page.Metadata.Continue; next == "" {
				break
			}
		}
	}
	return nil
}

func (a *Aggregator) sweepOne(ctx context.Context, kind Kind, object []byte, exists func(string) bool) error {
	for range conflicts {
		swept, err := kind.Sweep(object, exists)
		if err != nil || swept == nil {
			return err
		}
		var m metav1.PartialObjectMetadata
		if err := json.Unmarshal(object, &m); err != nil {
			return fmt.Errorf("reading the object: %w", err)
		}
		t := target{kind.Resource(), m.Namespace, m.Name}
		if _, err = a.put(ctx, t, swept); err == nil || apierrors.IsNotFound(err) {
			return nil
		}
		if !apierrors.IsConflict(err) {
			return err
		}
		a.conflicts.Inc()
		resp, err := a.client.Do(ctx, kube.Identity{}, kube.Request{Method: http.MethodGet, Path: t.path()})
		if err != nil {
			return err
		}
		if resp.Code == http.StatusNotFound {
			return nil
		}
		if err := resp.Err(); err != nil {
			return err
		}
		object = resp.Body
	}
	return fmt.Errorf("%s: %d conflicts with other writers in a row", kind.Resource().Resource, conflicts)
}
