// Package history gives the cluster's history a name. The name changes whenever reports of devices
// may be lost: after a restore of etcd, kube-apiserver serves older objects, and the objects
// themselves don't show that.
//
// It owns the annotations skerry.io/history and skerry.io/history-since of the Lease
// cloudcore-replicas, which all replicas of cloudcore share. A replica writes a new name when it
// sees the revision decrease (WentBack), and when it starts and no other replica was running: a
// restore may have been missed. It refuses to change the name on a device's request. Decide is
// pure; Run is called once, ID and WentBack by any goroutine. Bounds: a request each 10 s.
package history

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/rerun"
)

const (
	// Annotation has the name, SinceAnnotation when it was given.
	Annotation      = "skerry.io/history"
	SinceAnnotation = "skerry.io/history-since"

	period  = 10 * time.Second
	timeout = 5 * time.Second
	// patience is how long a session waits for the name when cloudcore starts. A session without it
	// is ended once it is known.
	patience = 5 * time.Second
	// fresh is how long a replica counts as running after it wrote its annotation, and how long a
	// new name counts as another replica's reaction to the same restore.
	fresh = 30 * time.Second
)

// Seen is the input of Decide.
type Seen struct {
	Annotations map[string]string // of the Lease
	Replicas    string            // prefix of the annotations of replicas
	Instance    string            // this one's annotation
	Own         string            // the name that this replica uses; "" at its start
	WentBack    bool              // the cluster may have gone back since
	Now         time.Time
}

// Decide returns the present name; "" if a new one is needed.
func Decide(s Seen) string {
	id := s.Annotations[Annotation]
	since, err := time.Parse(time.RFC3339, s.Annotations[SinceAnnotation])
	named := err == nil && s.Now.Sub(since).Abs() <= fresh
	switch {
	case id == "":
		return ""
	case s.WentBack:
		if id == s.Own || !named {
			return ""
		}
		return id // another replica has noticed too
	case s.Own != "" || named:
		return id // this replica was there, or another one has just started
	}
	for key, text := range s.Annotations {
		if !strings.HasPrefix(key, s.Replicas) || key == s.Instance {
			continue
		}
		var replica struct {
			At time.Time `json:"at"`
		}
		if err := json.Unmarshal([]byte(text), &replica); err == nil && s.Now.Sub(replica.At).Abs() <= fresh {
			return id // another replica was there
		}
	}
	return ""
}

// Config configures a Keeper.
type Config struct {
	Leases coordination.LeaseInterface // of cloudcore's own namespace
	Lease  string
	// Replicas is the prefix of the annotations of replicas, Instance this one's annotation
	// (package balance).
	Replicas, Instance string
	// Changed is called with each new name. Run waits for it.
	Changed func(id string)
}

// Keeper keeps the name.
type Keeper struct {
	config Config
	loop   *rerun.Loop
	known  chan struct{} // closed once there is a name

	mu       sync.Mutex
	id       string
	wentBack bool
}

// New makes a Keeper.
func New(c Config) *Keeper {
	k := &Keeper{config: c, known: make(chan struct{})}
	k.loop = rerun.New(k.step, rerun.Config{RetryMax: 5 * time.Second, Failed: func(ctx context.Context, err error, retry time.Duration) {
		klog.FromContext(ctx).Info("Failed to read or write the name of the cluster's history, retrying", "lease", c.Lease, "err", err, "retryIn", retry)
	}})
	return k
}

// ID is the name, once it is known; "" where that takes long.
func (k *Keeper) ID(ctx context.Context) string {
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-k.known:
	case <-ctx.Done():
	case <-late.C:
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.id
}

// WentBack notes that the cluster has gone back in time, or may have.
func (k *Keeper) WentBack() {
	k.mu.Lock()
	k.wentBack = true
	k.mu.Unlock()
	k.loop.Wake()
}

// Run keeps the name until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	k.loop.Run(ctx)
	return nil
}

func (k *Keeper) step(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	k.mu.Lock()
	own, wentBack := k.id, k.wentBack
	k.mu.Unlock()
	lease, err := k.config.Leases.Get(ctx, k.config.Lease, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		lease, err = k.config.Leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: k.config.Lease}}, metav1.CreateOptions{})
	}
	if err != nil {
		return 0, fmt.Errorf("reading the Lease %s: %w", k.config.Lease, err)
	}
	now := time.Now()
	id := Decide(Seen{lease.Annotations, k.config.Replicas, k.config.Instance, own, wentBack, now})
	if id == "" {
		id = rand.Text()
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"resourceVersion": lease.ResourceVersion, // fails if another replica was first
			"annotations":     map[string]string{Annotation: id, SinceAnnotation: now.UTC().Format(time.RFC3339)},
		}})
		if err != nil {
			return 0, fmt.Errorf("encoding a patch: %w", err)
		}
		if _, err := k.config.Leases.Patch(ctx, k.config.Lease, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return 0, fmt.Errorf("writing the Lease %s: %w", k.config.Lease, err)
		}
		klog.FromContext(ctx).Info("Began a new history of the cluster, devices repeat all reports", "history", id, "before", own, "wentBack", wentBack)
	}
	k.mu.Lock()
	k.id = id
	if own == "" {
		close(k.known)
	}
	if wentBack {
		k.wentBack = false
	}
	k.mu.Unlock()
	if id != own {
		k.config.Changed(id)
	}
	return period, nil
}
