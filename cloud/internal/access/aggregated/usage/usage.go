// Package usage serves `kubectl top` and autoscalers: metrics.k8s.io/v1beta1, the CPU and
// memory that nodes and pods use now.
//
// It owns the API's server, behind kube-apiserver's aggregator, and the newest sample of each node.
// A kubelet is asked when a client asks, and then at most once in some seconds: no byte crosses a
// thin link while no client does. It refuses every client but kube-apiserver's front proxy, which
// has judged the user before. It only reads. A Usage may be used by many goroutines at once.
package usage

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"math"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	metrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

const (
	// parallel bounds the kubelets that are asked at the same time; the others wait their turn.
	parallel = 64
	// window is the time over which a kubelet computes a rate: it samples that often (the
	// housekeeping interval of cadvisor).
	window = 10 * time.Second
)

// Config configures a Usage. Every zero duration means its default.
type Config struct {
	// Dial connects to the kubelet of a node.
	Dial func(ctx context.Context, node types.NodeName) (net.Conn, error)
	// Token authenticates cloudcore to kubelets. It is seen by every device that is asked, so it
	// must be good for this alone.
	Token func(ctx context.Context) (string, error)
	// Roots verify the kubelets' serving certificates, which are for the names of their nodes.
	Roots func() *x509.CertPool
	// Nodes and Pods are all of the cluster's.
	Nodes, Pods *kube.Store
	// FreshFor is how long a sample, or a failure, is served again: 10 s, the kubelet's own
	// interval.
	FreshFor time.Duration
	// Timeout is for one kubelet: 10 s.
	Timeout time.Duration
}

// Usage reads the resource usage of nodes.
type Usage struct {
	// Set by New, never changed.
	config Config
	client *http.Client
	turns  chan struct{} // one for each kubelet that is asked now

	mu      sync.Mutex
	ctx     context.Context // of Serve; nil while it does not run
	running sync.WaitGroup  // Add only with mu held and ctx set
	samples map[types.NodeName]*sample
	swept   time.Time
}

// sample is one answer of a kubelet, or the wait for it.
type sample struct {
	done    chan struct{}
	summary *stats.Summary
	err     error
	at      time.Time // when it was there; zero before
}

// New returns a Usage.
func New(config Config) *Usage {
	config.FreshFor = cmp.Or(config.FreshFor, window)
	config.Timeout = cmp.Or(config.Timeout, 10*time.Second)
	u := &Usage{config: config, turns: make(chan struct{}, parallel), samples: map[types.NodeName]*sample{}}
	u.client = u.kubelets()
	return u
}

// begin lets kubelets be asked until ctx ends; the returned function waits for those that are.
func (u *Usage) begin(ctx context.Context) func() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ctx = ctx
	return func() {
		u.mu.Lock()
		u.ctx = nil
		u.mu.Unlock()
		u.running.Wait()
		u.client.CloseIdleConnections()
	}
}

var errStopped = errors.New("cloudcore stops")

// of is a node's own report, of now or moments ago.
func (u *Usage) of(ctx context.Context, node types.NodeName) (*stats.Summary, error) {
	now := time.Now()
	u.mu.Lock()
	s := u.samples[node]
	if s == nil || !s.at.IsZero() && now.Sub(s.at) >= u.config.FreshFor {
		if u.ctx == nil {
			u.mu.Unlock()
			return nil, errStopped
		}
		u.sweep(now)
		s = &sample{done: make(chan struct{})}
		u.samples[node] = s
		serve := u.ctx
		u.running.Go(func() { u.take(serve, node, s) }) // the client may leave: others wait for the same
	}
	u.mu.Unlock()
	select {
	case <-s.done:
		return s.summary, s.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// sweep forgets old samples once a minute. u.mu is held.
func (u *Usage) sweep(now time.Time) {
	if now.Sub(u.swept) < time.Minute {
		return
	}
	u.swept = now
	for node, s := range u.samples {
		if !s.at.IsZero() && now.Sub(s.at) >= u.config.FreshFor {
			delete(u.samples, node)
		}
	}
}

// take asks a kubelet.
func (u *Usage) take(ctx context.Context, node types.NodeName, s *sample) {
	select {
	case u.turns <- struct{}{}:
		s.summary, s.err = u.ask(ctx, node)
		<-u.turns
	case <-ctx.Done():
		s.err = errStopped
	}
	u.mu.Lock()
	s.at = time.Now()
	u.mu.Unlock()
	close(s.done)
}

// each asks the nodes and calls found for those that answer, one after another. A node that can't
// be asked is left out, as autoscalers expect it.
func (u *Usage) each(ctx context.Context, nodes []types.NodeName, found func(types.NodeName, *stats.Summary)) {
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(parallel)
	for _, node := range nodes {
		g.Go(func() error {
			if summary, err := u.of(ctx, node); err == nil {
				mu.Lock()
				defer mu.Unlock()
				found(node, summary)
			}
			return nil
		})
	}
	_ = g.Wait() // never an error
}

// nodes is the usage of the nodes that sel selects, in the order of their names.
func (u *Usage) nodes(ctx context.Context, sel *kube.Selection) []metrics.NodeMetrics {
	var names []types.NodeName
	labels := map[types.NodeName]map[string]string{}
	u.config.Nodes.Each(sel, func(o *kube.Object) bool {
		names = append(names, types.NodeName(o.Name))
		labels[types.NodeName(o.Name)] = o.Labels
		return true
	})
	items := []metrics.NodeMetrics{}
	u.each(ctx, names, func(name types.NodeName, s *stats.Summary) {
		if n, ok := nodeMetrics(name, labels[name], s); ok {
			items = append(items, n)
		}
	})
	slices.SortFunc(items, func(a, b metrics.NodeMetrics) int { return cmp.Compare(a.Name, b.Name) })
	return items
}

func nodeMetrics(name types.NodeName, labels map[string]string, s *stats.Summary) (metrics.NodeMetrics, bool) {
	list, at, ok := used(s.Node.CPU, s.Node.Memory)
	return metrics.NodeMetrics{
		TypeMeta:   metav1.TypeMeta{Kind: "NodeMetrics", APIVersion: metrics.SchemeGroupVersion.String()},
		ObjectMeta: metav1.ObjectMeta{Name: string(name), Labels: labels, CreationTimestamp: metav1.Now()},
		Timestamp:  at, Window: metav1.Duration{Duration: window}, Usage: list,
	}, ok
}

// pods is the usage of the pods that sel selects, by namespace and name. Only their nodes
// are asked.
func (u *Usage) pods(ctx context.Context, sel *kube.Selection) []metrics.PodMetrics {
	var nodes []types.NodeName
	wanted := map[types.NodeName]map[types.UID]*kube.Object{}
	u.config.Pods.Each(sel, func(o *kube.Object) bool {
		node := types.NodeName(o.Node())
		if node == "" {
			return true
		}
		if wanted[node] == nil {
			wanted[node] = map[types.UID]*kube.Object{}
			nodes = append(nodes, node)
		}
		wanted[node][o.UID] = o
		return true
	})
	items := []metrics.PodMetrics{}
	u.each(ctx, nodes, func(node types.NodeName, s *stats.Summary) {
		for _, pod := range s.Pods {
			if o := wanted[node][types.UID(pod.PodRef.UID)]; o != nil {
				if m, ok := podMetrics(o, &pod); ok {
					items = append(items, m)
				}
			}
		}
	})
	slices.SortFunc(items, func(a, b metrics.PodMetrics) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return items
}

// podMetrics reports a pod only if it has figures for all its containers: a sum that lacks one
// would make an autoscaler scale down.
func podMetrics(o *kube.Object, pod *stats.PodStats) (metrics.PodMetrics, bool) {
	m := metrics.PodMetrics{
		TypeMeta:   metav1.TypeMeta{Kind: "PodMetrics", APIVersion: metrics.SchemeGroupVersion.String()},
		ObjectMeta: metav1.ObjectMeta{Name: o.Name, Namespace: o.Namespace, Labels: o.Labels, CreationTimestamp: metav1.Now()},
		Window:     metav1.Duration{Duration: window},
	}
	for _, c := range pod.Containers {
		list, at, ok := used(c.CPU, c.Memory)
		if !ok {
			return m, false
		}
		if m.Timestamp.IsZero() || at.Before(&m.Timestamp) {
			m.Timestamp = at
		}
		m.Containers = append(m.Containers, metrics.ContainerMetrics{Name: c.Name, Usage: list})
	}
	return m, len(m.Containers) > 0
}

// used is false where a value is missing, since of a container that has just started there is no
// rate yet, or can't be: a kubelet that reports 2^63 and more would lower the sum of its pods and
// of other nodes'.
func used(cpu *stats.CPUStats, memory *stats.MemoryStats) (corev1.ResourceList, metav1.Time, bool) {
	if cpu == nil || cpu.UsageNanoCores == nil || memory == nil || memory.WorkingSetBytes == nil || *cpu.UsageNanoCores > math.MaxInt64 || *memory.WorkingSetBytes > math.MaxInt64 {
		return nil, metav1.Time{}, false
	}
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(*cpu.UsageNanoCores), resource.Nano),
		corev1.ResourceMemory: *resource.NewQuantity(int64(*memory.WorkingSetBytes), resource.BinarySI),
	}, cpu.Time, true
}
