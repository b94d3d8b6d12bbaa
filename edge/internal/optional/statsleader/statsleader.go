// Package statsleader is the device's part in the election of the reporter of the cluster's
// statistics (ClusterInfo).
//
// It owns this device's candidacy: it asks for the Lease while the device has its configuration,
// that is a ClusterInfo that selects it, renews it, and releases it when the configuration is
// removed. It refuses to lead without proof: the last renewal that succeeded must be younger than
// RenewDeadline, which is shorter than the Lease, so a device that is cut off has stopped before
// another one can begin. Without a link no request is made.
//
// The election itself is client-go's. One goroutine elects, another follows the configuration;
// Status may be called by any. On the link a leader costs one write in RetryPeriod, and a
// candidate one read.
package statsleader

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
)

// Name is the module's.
const Name message.Name = "clusterstats"

// Namespace has the Lease.
const Namespace = "skerry-system"

// Config configures the module.
type Config struct {
	NodeName string
	// API is for the edge API, Cloud for the cloud, which serves the Lease.
	API, Cloud *rest.Config

	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
}

// Status is the part of `edgecore status`.
type Status struct {
	Candidate bool      `json:"candidate"` // the device has its configuration
	Leading   bool      `json:"leading"`
	Leader    string    `json:"leader,omitempty"`  // the last seen holder of the Lease
	Renewed   time.Time `json:"renewed,omitzero"`  // by this device, when it was leader last
	Problem   string    `json:"problem,omitempty"` // of the last try
}

// Leader takes part in the election.
type Leader struct {
	*agent.Module
	config Config

	mu     sync.Mutex
	status Status
	began  time.Time // when the renewal began that succeeded last; zero: the Lease was given back, or never held
}

// New makes a Leader.
func New(config Config) *Leader {
	l := &Leader{config: config}
	l.Module = agent.New(agent.Config{Name: Name, NodeName: config.NodeName, API: config.API, Start: l.start})
	return l
}

// Status is the present state, for any goroutine.
func (l *Leader) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.status
	s.Leading = l.leading(time.Now())
	return s
}

// leading reports whether the Lease is this device's beyond doubt: the renewal is counted from when
// it was asked for, and by both clocks, because the monotonic one stops while a machine is
// suspended. mu is held.
func (l *Leader) leading(now time.Time) bool {
	if l.began.IsZero() {
		return false
	}
	since, wall := now.Sub(l.began), now.Round(0).Sub(l.began.Round(0))
	return max(since, wall) < l.config.RenewDeadline && wall >= 0
}

// follower is one run.
type follower struct {
	*Leader
	run   *agent.Run
	infos *agent.Objects[*v1alpha1.ClusterInfo]
	nodes *agent.Objects[*corev1.Node]

	mu      sync.Mutex
	stand   bool          // whether the device may be leader, and has a link or is leader still
	changed chan struct{} // closed when stand changes
}

func (l *Leader) start(_ context.Context, r *agent.Run) (agent.Sync, error) {
	infos, err := agent.Watch(r, v1alpha1.Resource(v1alpha1.ClusterInfos), &v1alpha1.ClusterInfo{}, agent.Selection{})
	if err != nil {
		return nil, err
	}
	nodes, err := agent.Watch(r, corev1.SchemeGroupVersion.WithResource("nodes"), &corev1.Node{}, agent.Selection{Fields: "metadata.name=" + l.config.NodeName})
	if err != nil {
		return nil, err
	}
	cloud := rest.CopyConfig(l.config.Cloud)
	cloud.ContentType, cloud.AcceptContentTypes = "application/json", "application/json"
	cloud.QPS = -1 // the election's period is the bound
	client, err := coordinationv1.NewForConfig(cloud)
	if err != nil {
		return nil, fmt.Errorf("making the client for the Lease: %w", err)
	}
	f := &follower{Leader: l, run: r, infos: infos, nodes: nodes, changed: make(chan struct{})}
	r.Go(func(ctx context.Context) error { return f.elect(ctx, client) })
	return f.sync, nil
}

// sync looks whether the device may be leader.
func (f *follower) sync(context.Context) (time.Duration, error) {
	candidate := false
	if info, ok := f.infos.Get(v1alpha1.ClusterInfoName); ok && info.DeletionTimestamp == nil {
		if node, ok := f.nodes.Get(f.config.NodeName); ok {
			candidate = labels.SelectorFromSet(info.Spec.NodeSelector).Matches(labels.Set(node.Labels))
		}
	}
	f.Leader.mu.Lock()
	f.status.Candidate = candidate
	leading := f.leading(time.Now())
	f.Leader.mu.Unlock()
	// A leader without a link tries until its deadline; a candidate without one has
	// no server to ask.
	up := f.run.Link().Up
	f.set(candidate && (up || leading))
	if candidate && !up && leading {
		return f.config.RetryPeriod, nil
	}
	return 0, nil
}

func (f *follower) set(stand bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if stand != f.stand {
		f.stand = stand
		close(f.changed)
		f.changed = make(chan struct{})
	}
}

func (f *follower) standing() (stand bool, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stand, f.changed
}

// elect takes part whenever the device may.
func (f *follower) elect(ctx context.Context, client coordinationv1.LeasesGetter) error {
	for ctx.Err() == nil {
		stand, changed := f.standing()
		if !stand {
			select {
			case <-ctx.Done():
			case <-changed:
			}
			continue
		}
		if err := f.once(ctx, client, changed); err != nil {
			return err
		}
		select { // a Lease that was lost is not asked for again at once
		case <-ctx.Done():
		case <-time.After(f.config.RetryPeriod):
		}
	}
	return nil
}

// once takes part until the Lease is lost, or the device may no longer be leader: then it is
// released.
func (f *follower) once(ctx context.Context, client coordinationv1.LeasesGetter, changed <-chan struct{}) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(ctx, func() { f.lost() })()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &lock{Leader: f.Leader, Interface: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: Namespace, Name: v1alpha1.StatsLeaderLease},
			Client:     client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: f.config.NodeName},
		}},
		Name: string(Name), ReleaseOnCancel: true,
		LeaseDuration: f.config.LeaseDuration, RenewDeadline: f.config.RenewDeadline, RetryPeriod: f.config.RetryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { klog.FromContext(ctx).Info("This device reports the cluster's statistics") },
			OnStoppedLeading: func() { f.lost() },
		},
	})
	if err != nil {
		return fmt.Errorf("making the election: %w", err)
	}
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			var stand bool
			if stand, changed = f.standing(); !stand {
				stop()
			}
		}
	})
	elector.Run(ctx)
	stop()
	watching.Wait()
	return nil
}

func (l *Leader) lost() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.began = time.Time{}
}

// lock is the Lease as the election uses it. It records observed holders, and bounds each request:
// an election that waits for an answer does not notice that its time is over.
type lock struct {
	*Leader
	resourcelock.Interface
}

func (l *lock) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(l.config.RetryPeriod, 30*time.Second))
}

// Get implements resourcelock.Interface.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	record, raw, err := l.Interface.Get(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note(err)
	if err == nil {
		l.status.Leader = record.HolderIdentity
	}
	return record, raw, err
}

// Update implements resourcelock.Interface.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	began := time.Now()
	if record.HolderIdentity != l.config.NodeName {
		l.lost() // it is released: whether or not the cloud receives that, this device is no longer leader
	}
	err := l.Interface.Update(ctx, record)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note(err)
	if err == nil {
		l.status.Leader = record.HolderIdentity
		if record.HolderIdentity == l.config.NodeName && ctx.Err() == nil {
			l.began, l.status.Renewed = began, began.UTC()
		}
	}
	return err
}

// note keeps the error of a request. mu is held.
func (l *lock) note(err error) {
	l.status.Problem = ""
	if err != nil {
		l.status.Problem = err.Error()
	}
}
