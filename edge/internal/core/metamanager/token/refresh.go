package token

import (
	"bytes"
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager/request"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

const (
	// refreshers is how many tokens are asked for at one time when a link has come up.
	refreshers = 4
	// Renewals for another key come in threes at most (a refusal, the key that it brings, and
	// one more), and then once in renewAgain: while a cluster's replicas change their keys one
	// after the other, each token may be of another.
	renewals, renewAgain = 3, time.Minute
)

// Refresh renews the kept tokens that are past or near their expiry, each time that linked has a
// value: so they are recent should the link be lost before the kubelet asks, which it does about
// once a minute. The kubelet then gets the renewed token. The same for tokens of a key that the
// cloud has replaced, as soon as that is detected. It ends with ctx.
func (t *Keeper) Refresh(ctx context.Context, linked <-chan struct{}) error {
	limit := rate.NewLimiter(rate.Every(renewAgain), renewals)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-linked:
		case <-t.due:
			if limit.Wait(ctx) != nil {
				return nil
			}
		}
		if n, err := t.refreshAll(ctx, time.Now()); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Info("Failed to renew some kept tokens, leaving it to the kubelet's next requests", "renewed", n, "err", err)
		} else if n > 0 {
			klog.FromContext(ctx).V(2).Info("Renewed kept tokens", "tokens", n)
		}
	}
}

// refreshAll renews the tokens that are due, and returns their number.
func (t *Keeper) refreshAll(ctx context.Context, now time.Time) (int, error) {
	type answer struct {
		key  []byte
		kept *storepb.Answer
	}
	var due []answer
	if err := t.config.Store.View(func(tx *store.Tx) error {
		return tx.Answers(func(k []byte, a *storepb.Answer) error {
			if len(a.Request) > 0 && (old(a, now) || t.replaced(k)) {
				due = append(due, answer{bytes.Clone(k), a})
			}
			return nil
		})
	}); err != nil {
		return 0, err
	}
	results := make([]bool, len(due))
	g, ctx := errgroup.WithContext(ctx) // the first that the link does not answer ends it: the next link begins again
	g.SetLimit(refreshers)
	for i, a := range due {
		g.Go(func() (err error) {
			results[i], err = t.refresh(ctx, a.key, a.kept)
			return err
		})
	}
	err := g.Wait()
	n := 0
	for _, done := range results {
		if done {
			n++
		}
	}
	return n, err
}

func (t *Keeper) refresh(ctx context.Context, k []byte, a *storepb.Answer) (bool, error) {
	w := request.Write{
		Verb: "create", Subresource: "token", Path: a.Path, Body: a.Request, ContentType: a.RequestType, Accept: runtime.ContentTypeJSON,
		Ref: object.Ref{Resource: schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}},
	}
	result, err := t.config.Ask(ctx, w)
	if err != nil {
		return false, err
	}
	if result.Response.Code/100 != 2 {
		return false, nil // the account or the pod is deleted, or the permission is lost: the kubelet gets that answer itself
	}
	return true, t.keep(ctx, k, types.UID(a.BoundUid), w, result.Response)
}
