package app

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/trust/join"
)

// service makes a module of a Run function: most of cloudcore's parts call each other directly and
// don't use the bus.
func service(name message.Name, run func(context.Context) error) beehive.Module {
	return &serviceModule{name, run}
}

// restarted is a service that starts again when it fails.
func restarted(name message.Name, run func(context.Context) error) beehive.Entry {
	return beehive.Entry{Module: service(name, run), Restart: beehive.OnFailure(beehive.Backoff{})}
}

// serving is a service whose listener ends with it: without that cloudcore is of no use, so it ends
// too, and is started again.
func serving(name message.Name, run func(context.Context) error) beehive.Entry {
	return beehive.Entry{Module: service(name, run), Restart: beehive.Never()}
}

type serviceModule struct {
	name message.Name
	run  func(context.Context) error
}

func (s *serviceModule) Name() message.Name { return s.name }

func (s *serviceModule) Run(ctx context.Context, port *beehive.Port) error {
	port.Ready()
	return s.run(ctx)
}

// The times of Kubernetes' own controllers,
// https://pkg.go.dev/k8s.io/component-base/config/v1alpha1
// (RecommendedDefaultLeaderElectionConfiguration).
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// releaseTimeout bounds the giving up of a Lease, which another replica waits for; without it
// that waits until the Lease has run out.
const releaseTimeout = 3 * time.Second

// lead runs a function on one replica at a time: the one that holds the Lease. It returns when ctx
// ends, the Lease is lost, or the function fails, and not before the function has returned. The
// Lease is given up after that, so that no other replica begins while this one still works
// (client-go's ReleaseOnCancel would do so before).
func lead(ctx context.Context, client kubernetes.Interface, lease, identity string, run func(context.Context) error) error {
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: join.Namespace, Name: lease},
		Client:     client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}
	leading, stop := context.WithCancel(ctx)
	defer stop()
	var (
		mu    sync.Mutex
		over  bool
		ended chan error // of run; nil: it was not called
	)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: lease,
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { // in a goroutine of its own
				mu.Lock()
				if over {
					mu.Unlock()
					return
				}
				ended = make(chan error, 1)
				mu.Unlock()
				ended <- run(ctx)
				stop()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("making the leader election: %w", err)
	}
	elector.Run(leading) // returns when the Lease is lost, ctx ends, or run has returned
	mu.Lock()
	over = true
	mu.Unlock()
	if ended != nil {
		err = <-ended
		release(ctx, lock)
	}
	if err == nil && ctx.Err() == nil {
		err = fmt.Errorf("another replica holds the Lease %s now", lease)
	}
	return err
}

// release gives the Lease up, if it is ours still.
func release(ctx context.Context, lock *resourcelock.LeaseLock) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	held, _, err := lock.Get(ctx)
	if err == nil && held.HolderIdentity == lock.Identity() {
		now := metav1.Now()
		err = lock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaderTransitions: held.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
		})
	}
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Failed to release the leader Lease, waiting for it to expire", "lease", klog.KObj(&lock.LeaseMeta), "err", err)
	}
}
