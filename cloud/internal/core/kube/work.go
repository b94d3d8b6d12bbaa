package kube

import (
	"context"
	"sync"

	"k8s.io/client-go/util/workqueue"
)

// Work calls do for the keys of a queue, so many at once, until ctx ends. It shuts the queue down
// then and waits for the calls that run. A failed key is added again by do itself.
func Work[T comparable](ctx context.Context, queue workqueue.TypedRateLimitingInterface[T], atOnce int, do func(context.Context, T)) {
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for {
				item, shutdown := queue.Get()
				if shutdown {
					return
				}
				do(ctx, item)
				queue.Done(item)
			}
		})
	}
	<-ctx.Done()
	queue.ShutDown()
	wg.Wait()
}
