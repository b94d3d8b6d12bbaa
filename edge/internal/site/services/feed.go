package services

import (
	"cmp"
	"context"
	"net/netip"
	"reflect"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/kubeproxy"
)

// Bounds of the programmed Services. Beyond, the newest stay out, and how many is reported.
const (
	maxServices  = 5000
	maxEndpoints = 10_000
)

// View is the Services and EndpointSlices: a *serviceview.View.
type View interface {
	Services() cache.SharedIndexInformer
	Slices() cache.SharedIndexInformer
	HasSynced() bool
}

// Bounds are how many Services and endpoints are programmed.
type Bounds struct{ Services, Endpoints int }

// proxyNameLabel names another proxy than the node's for a Service (KEP-2447).
const proxyNameLabel = "service.kubernetes.io/service-proxy-name"

// intake has the objects of one kind that are passed to the proxy, up to a bound.
type intake[T object] struct {
	most        int
	weigh       func(T) int
	add, remove func(T)
	update      func(old, now T)
	mu          sync.Mutex
	taken       map[string]T
	weight      int
	refused     map[string]T
	// judge returns the part of an object that is let through; nil: all of it.
	judge func(T) T
}

type object interface {
	comparable
	GetNamespace() string
	GetName() string
	GetCreationTimestamp() metav1.Time
}

// set records the current state of an object.
func (in *intake[T]) set(key string, now T) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.judge != nil {
		now = in.judge(now)
	}
	in.put(key, now)
}

// again passes an object that was passed before, if it has changed since.
func (in *intake[T]) again(key string, judged T) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if had, ok := in.taken[key]; ok && !reflect.DeepEqual(had, judged) {
		in.put(key, judged)
	}
}

func (in *intake[T]) put(key string, now T) {
	old, had := in.taken[key]
	weight := in.weight + in.weigh(now)
	if had {
		weight -= in.weigh(old)
	}
	if weight > in.most {
		in.refused[key] = now
		if had {
			in.drop(key, old)
		}
		return
	}
	delete(in.refused, key)
	in.taken[key], in.weight = now, weight
	if had {
		in.update(old, now)
		return
	}
	in.add(now)
}

func (in *intake[T]) drop(key string, old T) {
	delete(in.taken, key)
	in.weight -= in.weigh(old)
	in.remove(old)
}

// unset takes over that an object is gone. A refused object gets its place, the oldest first.
func (in *intake[T]) unset(key string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.refused, key)
	old, had := in.taken[key]
	if !had {
		return
	}
	in.drop(key, old)
	if len(in.refused) == 0 {
		return
	}
	waiting := make([]string, 0, len(in.refused))
	for k := range in.refused {
		waiting = append(waiting, k)
	}
	slices.SortFunc(waiting, func(a, b string) int {
		x, y := in.refused[a], in.refused[b]
		if c := x.GetCreationTimestamp().Compare(y.GetCreationTimestamp().Time); c != 0 {
			return c
		}
		return cmp.Compare(a, b)
	})
	for _, k := range waiting {
		if in.weight+in.weigh(in.refused[k]) > in.most {
			return
		}
		in.put(k, in.refused[k])
	}
}

func (in *intake[T]) out() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.refused)
}

func (in *intake[T]) handler(wants func(T) bool, changed func()) cache.ResourceEventHandlerFuncs {
	key := func(o T) string { return o.GetNamespace() + "/" + o.GetName() }
	take := func(o any) {
		if x, ok := o.(T); ok {
			if wants(x) {
				in.set(key(x), x)
			} else {
				in.unset(key(x))
			}
			changed()
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: take, UpdateFunc: func(_, now any) { take(now) },
		DeleteFunc: func(o any) {
			if k, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
				in.unset(k)
				changed()
			}
		},
	}
}

// feed connects a View to a proxy.
type feed struct {
	rules    func() Rules
	services *intake[*corev1.Service]
	slices   *intake[*discoveryv1.EndpointSlice]
}

func newFeed(p kubeproxy.Proxy, most Bounds, rules func() Rules) *feed {
	judge := func(s *corev1.Service) *corev1.Service {
		if !external(s) {
			return s
		}
		judged, _ := rules().Judge(s)
		return judged
	}
	return &feed{
		rules: rules,
		services: &intake[*corev1.Service]{
			most: most.Services, judge: judge, weigh: func(*corev1.Service) int { return 1 }, add: p.OnServiceAdd, update: p.OnServiceUpdate, remove: p.OnServiceDelete,
			taken: map[string]*corev1.Service{}, refused: map[string]*corev1.Service{},
		},
		slices: &intake[*discoveryv1.EndpointSlice]{
			most: most.Endpoints, weigh: func(s *discoveryv1.EndpointSlice) int { return len(s.Endpoints) },
			add: p.OnEndpointSliceAdd, update: p.OnEndpointSliceUpdate, remove: p.OnEndpointSliceDelete,
			taken: map[string]*discoveryv1.EndpointSlice{}, refused: map[string]*discoveryv1.EndpointSlice{},
		},
	}
}

// attach passes all objects of the view, and then each change. It returns when the proxy's rules
// are in the kernel for the first time.
func (f *feed) attach(ctx context.Context, v View, p kubeproxy.Proxy, changed func()) error {
	ours := func(s *corev1.Service) bool { return s.Labels[proxyNameLabel] == "" }
	services, err := v.Services().AddEventHandler(f.services.handler(ours, changed))
	if err != nil {
		return err
	}
	all := func(*discoveryv1.EndpointSlice) bool { return true }
	endpoints, err := v.Slices().AddEventHandler(f.slices.handler(all, changed))
	if err != nil {
		return err
	}
	if !cache.WaitForCacheSync(ctx.Done(), services.HasSynced, endpoints.HasSynced) {
		return ctx.Err()
	}
	p.OnServiceSynced()
	p.OnEndpointSlicesSynced()
	return nil
}

// external reports whether a Service asks for addresses outside of the cluster.
func external(s *corev1.Service) bool {
	return len(s.Spec.ExternalIPs)+len(s.Status.LoadBalancer.Ingress) > 0
}

// judgeAgain has the Services judged by the present rules, and names the addresses that don't
// count.
func (f *feed) judgeAgain(v View) (why []string) {
	rules := f.rules()
	for _, o := range v.Services().GetStore().List() {
		s, ok := o.(*corev1.Service)
		if !ok || !external(s) || s.Labels[proxyNameLabel] != "" {
			continue
		}
		judged, words := rules.Judge(s)
		for _, w := range words {
			why = append(why, s.Namespace+"/"+s.Name+": "+w)
		}
		f.services.again(s.Namespace+"/"+s.Name, judged)
	}
	slices.Sort(why)
	return why
}

// claims are the addresses outside of the cluster that Services have, the oldest Service's first,
// and those that the proxy was given.
func (f *feed) claims(v View) (all []string, given map[string]bool) {
	rules := f.rules()
	withheld := rules.Withheld
	rules.Withheld = nil
	var services []*corev1.Service
	for _, o := range v.Services().GetStore().List() {
		if s, ok := o.(*corev1.Service); ok && external(s) && s.Labels[proxyNameLabel] == "" {
			services = append(services, s)
		}
	}
	slices.SortFunc(services, func(a, b *corev1.Service) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	given = map[string]bool{}
	for _, s := range services {
		judged, _ := rules.Judge(s)
		texts := slices.Clone(judged.Spec.ExternalIPs)
		for _, i := range judged.Status.LoadBalancer.Ingress {
			if i.IPMode == nil || *i.IPMode != corev1.LoadBalancerIPModeProxy { // else no rule has it
				texts = append(texts, i.IP)
			}
		}
		for _, text := range texts {
			a, err := netip.ParseAddr(text)
			if err != nil {
				continue // an ingress by name
			}
			claim := claimOf(s, a.Unmap())
			all = append(all, claim)
			if withheld == nil || withheld(claim) == "" {
				given[claim] = true
			}
		}
	}
	return all, given
}
