package reports

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

const (
	sweepAfter   = time.Second // nodes often go in numbers
	sweepAgain   = 10 * time.Second
	sweepTimeout = 10 * time.Minute // it reads every object of every kind
	pageSize     = 200
)

// Sweeper removes the entries of deleted nodes from every status: it looks through all objects at
// the start, and whenever a node goes.
func (a *Aggregator) Sweeper() controller.Config {
	return controller.Config{
		Name: "reports", Settle: sweepAfter, RetryMin: sweepAgain, RetryMax: sweepAgain, Timeout: sweepTimeout,
		Start: func(_ context.Context, r *controller.Run) (controller.Work, error) {
			nodes := controller.Watch[corev1.Node](r, corev1.SchemeGroupVersion.WithResource("nodes"), func(_, now *kube.Object) {
				if now == nil {
					r.Wake()
				}
			})
			exists := func(node string) bool { return nodes.Object(kube.Key{Name: node}) != nil }
			return controller.Level(func(ctx context.Context) (time.Duration, error) { return 0, a.sweep(ctx, exists) }), nil
		},
	}
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
