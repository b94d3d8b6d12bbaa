package endpoints

import (
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// The Services that the device implements itself.
var (
	apiService = types.NamespacedName{Namespace: "default", Name: "kubernetes"}
	dnsService = types.NamespacedName{Namespace: "kube-system", Name: "kube-dns"}
)

func slicesResource() schema.GroupVersionResource {
	return discoveryv1.SchemeGroupVersion.WithResource("endpointslices")
}

// CorrectionConfig configures a Correction.
type CorrectionConfig struct {
	NodeName string
	// API is where this device's API listens for pods, DNS where its names are answered: the
	// endpoints of default/kubernetes and kube-system/kube-dns. The zero value: the cloud's
	// endpoints are shown.
	API, DNS netip.AddrPort
	// Peers is the state of other devices; nil: unknown.
	Peers Knowledge
}

// Correction corrects slices by the present state.
type Correction struct {
	config CorrectionConfig
	locals map[types.NamespacedName]*Local

	mu       sync.Mutex
	pods     map[types.UID]PodStatus
	services map[types.NamespacedName]Service
	known    map[types.NamespacedName]facts // the dependencies of corrected slices, by the slice
	site     string                         // as the last slice had it
	changed  map[string]struct{}            // devices, since the last take; at most as many as there are in slices, since others are skipped
	wake     func()
}

// facts are the dependencies of the correction of a slice.
type facts struct {
	service types.NamespacedName
	pods    []types.UID // on this device
	devices []string
}

// NewCorrection returns a Correction without state: until it has any, no pod of this device is
// shown as ready.
func NewCorrection(c CorrectionConfig) *Correction {
	if c.Peers == nil {
		c.Peers = Strangers{}
	}
	out := &Correction{
		config: c, locals: map[types.NamespacedName]*Local{}, pods: map[types.UID]PodStatus{}, services: map[types.NamespacedName]Service{},
		known: map[types.NamespacedName]facts{}, changed: map[string]struct{}{}, wake: func() {},
	}
	if c.API.IsValid() {
		out.locals[apiService] = &Local{Address: c.API, Ports: map[corev1.Protocol]bool{corev1.ProtocolTCP: true}}
	}
	if c.DNS.IsValid() {
		out.locals[dnsService] = &Local{Address: c.DNS, Ports: map[corev1.Protocol]bool{corev1.ProtocolTCP: true, corev1.ProtocolUDP: true}}
	}
	return out
}

// Corrects implements object.Corrector.
func (*Correction) Corrects(resource schema.GroupVersionResource) bool {
	return resource == slicesResource()
}

// Correct implements object.Corrector. An unreadable slice is shown unchanged.
func (c *Correction) Correct(o object.Object, decoded runtime.Object) []byte {
	if decoded == nil {
		var err error
		if decoded, err = object.DecodeRaw(o.Raw); err != nil {
			return o.Raw
		}
	}
	came, ok := decoded.(*discoveryv1.EndpointSlice)
	if !ok {
		return o.Raw
	}
	s := *came
	s.Endpoints = slices.Clone(came.Endpoints) // correct replaces the values that they point to
	c.mu.Lock()
	c.note(o.Ref, &s)
	correct(&s, c.stateFor(&s))
	c.mu.Unlock()
	if apiequality.Semantic.DeepEqual(came, &s) {
		return o.Raw
	}
	raw, err := object.Encode(&s)
	if err != nil {
		return o.Raw
	}
	return raw
}

// note remembers the dependencies of a slice. The lock is held.
func (c *Correction) note(ref object.Ref, s *discoveryv1.EndpointSlice) {
	f := facts{service: types.NamespacedName{Namespace: ref.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}}
	for _, e := range s.Endpoints {
		if e.NodeName == nil {
			continue
		}
		if !slices.Contains(f.devices, *e.NodeName) {
			f.devices = append(f.devices, *e.NodeName)
		}
		if e.TargetRef != nil && *e.NodeName == c.config.NodeName {
			f.pods = append(f.pods, e.TargetRef.UID)
		}
	}
	c.known[types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}] = f
	if site := s.Annotations[v1alpha1.SiteAnnotation]; site != "" {
		c.site = site
	}
}

// stateFor is the input of a slice's correction. The lock is held.
func (c *Correction) stateFor(s *discoveryv1.EndpointSlice) state {
	service := serviceOf(s)
	return state{node: c.config.NodeName, pods: c.pods, service: c.services[service], local: c.locals[service], peers: c.config.Peers}
}

// Site is the name of this device's site as the cloud's slices have it; "" before the first.
func (c *Correction) Site() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.site
}

// PeerChanged has the slices shown again that have endpoints on a device, after the state of it
// has changed. Any goroutine may call it, but not from within a Knowledge.
func (c *Correction) PeerChanged(device string) {
	c.mu.Lock()
	concerned := false
	for _, f := range c.known {
		if concerned = slices.Contains(f.devices, device); concerned {
			break
		}
	}
	if concerned {
		c.changed[device] = struct{}{}
	}
	wake := c.wake
	c.mu.Unlock()
	if concerned {
		wake()
	}
}

// learn takes over the present state of this device's pods and of the Services, and returns the
// slices that may look different then.
func (c *Correction) learn(pods map[types.UID]PodStatus, services map[types.NamespacedName]Service) []object.Ref {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, oldServices, devices := c.pods, c.services, c.changed
	c.pods, c.services, c.changed = pods, services, map[string]struct{}{}
	var refs []object.Ref
	for key, f := range c.known {
		if f.concerned(old, pods, devices) || oldServices[f.service] != services[f.service] {
			refs = append(refs, object.Ref{Resource: slicesResource(), Namespace: key.Namespace, Name: key.Name})
		}
	}
	return refs
}

func (f facts) concerned(old, now map[types.UID]PodStatus, devices map[string]struct{}) bool {
	for _, uid := range f.pods {
		a, had := old[uid]
		b, has := now[uid]
		if had != has || !a.equal(b) {
			return true
		}
	}
	return slices.ContainsFunc(f.devices, func(d string) bool { _, changed := devices[d]; return changed })
}

// all lists every slice that was corrected, and clears the list: slices still in the cache are
// added again when they are presented again.
func (c *Correction) all() []object.Ref {
	c.mu.Lock()
	defer c.mu.Unlock()
	refs := make([]object.Ref, 0, len(c.known))
	for key := range c.known {
		refs = append(refs, object.Ref{Resource: slicesResource(), Namespace: key.Namespace, Name: key.Name})
	}
	clear(c.known)
	return refs
}

func (c *Correction) onChange(wake func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wake = wake
}
