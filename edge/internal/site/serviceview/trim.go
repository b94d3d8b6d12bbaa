package serviceview

import (
	"maps"
	"strings"
	"sync"
	"weak"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// maxShared bounds the texts that objects share: names of namespaces, nodes and ports. At the bound
// further ones stay each object's own.
const maxShared = 4096

// trimmer removes fields that no reader of the View uses, and has objects share equal parts
// in many: a decoded object has each text, and each pointer to one, to itself.
type trimmer struct {
	mu      sync.Mutex
	texts   map[any]any // of a text, the pointer to its one copy
	yes, no bool
	// held has the newest copy of each Service, for as long as it is used in the process. sweepAt
	// is the number at which unused ones are dropped.
	held    map[string]weak.Pointer[corev1.Service]
	sweepAt int
}

func newTrimmer() *trimmer {
	return &trimmer{texts: map[any]any{}, yes: true, held: map[string]weak.Pointer[corev1.Service]{}, sweepAt: heldSweep}
}

var _ cache.TransformFunc = (&trimmer{}).trim

// trim changes an object that is not shared yet. It is idempotent.
func (t *trimmer) trim(o any) (any, error) {
	switch x := o.(type) {
	case *corev1.Service:
		return t.shared(x), nil
	case *discoveryv1.EndpointSlice:
		t.mu.Lock()
		defer t.mu.Unlock()
		t.slice(x)
	}
	return o, nil // other types are tombstones
}

func (t *trimmer) service(s *corev1.Service) {
	t.meta(&s.ObjectMeta)
	s.Status.Conditions = nil
	p := &s.Spec
	p.Selector = nil
	if len(p.ClusterIPs) > 0 && p.ClusterIPs[0] == p.ClusterIP {
		p.ClusterIPs[0] = p.ClusterIP
	}
	same(t, &p.Type)
	same(t, &p.SessionAffinity)
	same(t, &p.ExternalTrafficPolicy)
	pointer(t, &p.InternalTrafficPolicy)
	pointer(t, &p.IPFamilyPolicy)
	pointer(t, &p.TrafficDistribution)
	for i := range p.IPFamilies {
		same(t, &p.IPFamilies[i])
	}
	for i := range p.Ports {
		same(t, &p.Ports[i].Name)
		same(t, &p.Ports[i].Protocol)
		pointer(t, &p.Ports[i].AppProtocol)
		same(t, &p.Ports[i].TargetPort.StrVal)
	}
}

func (t *trimmer) slice(s *discoveryv1.EndpointSlice) {
	t.meta(&s.ObjectMeta)
	same(t, &s.AddressType)
	for i := range s.Ports {
		pointer(t, &s.Ports[i].Name)
		pointer(t, &s.Ports[i].Protocol)
		pointer(t, &s.Ports[i].AppProtocol)
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		e.TargetRef, e.DeprecatedTopology = nil, nil
		pointer(t, &e.NodeName)
		pointer(t, &e.Zone)
		for _, b := range []**bool{&e.Conditions.Ready, &e.Conditions.Serving, &e.Conditions.Terminating} {
			if *b != nil {
				*b = t.bool(**b)
			}
		}
		if e.Hints != nil {
			for j := range e.Hints.ForZones {
				same(t, &e.Hints.ForZones[j].Name)
			}
			for j := range e.Hints.ForNodes {
				same(t, &e.Hints.ForNodes[j].Name)
			}
		}
	}
}

// meta keeps an object's identity, its age, and the labels and annotations used by a proxy or a
// name server.
func (t *trimmer) meta(m *metav1.ObjectMeta) {
	*m = metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, ResourceVersion: m.ResourceVersion, CreationTimestamp: m.CreationTimestamp,
		Labels: t.ofServices(m.Labels), Annotations: t.ofServices(m.Annotations),
	}
	same(t, &m.Namespace)
}

// ofServices are those that Kubernetes has for Services.
func (t *trimmer) ofServices(all map[string]string) (kept map[string]string) {
	for k, v := range all {
		if k == discoveryv1.LabelServiceName || strings.HasPrefix(k, "service.kubernetes.io/") {
			if kept == nil {
				kept = map[string]string{}
			}
			same(t, &k)
			kept[k] = v
		}
	}
	return kept
}

func (t *trimmer) bool(b bool) *bool {
	if b {
		return &t.yes
	}
	return &t.no
}

// text is the one copy of a text, for use by pointer. Texts of different types are different keys.
func text[T ~string](t *trimmer, s T) *T {
	if p, ok := t.texts[s].(*T); ok {
		return p
	}
	if len(t.texts) < maxShared {
		t.texts[s] = &s
	}
	return &s
}

// same has a text be the one copy of it.
func same[T ~string](t *trimmer, s *T) { *s = *text(t, *s) }

// pointer has a pointer to a text point to the one copy of it.
func pointer[T ~string](t *trimmer, p **T) {
	if *p != nil {
		*p = text(t, **p)
	}
}

// heldSweep is the minimum number of Services before unused ones are swept.
const heldSweep = 64

// shared is the one copy of a Service, trimmed: of two that read the same state of it, the second
// gets the first one's.
func (t *trimmer) shared(s *corev1.Service) *corev1.Service {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := s.Namespace + "/" + s.Name
	// Each version of the edge API is of a single change, and never issued again.
	if held := t.held[key].Value(); held != nil && s.ResourceVersion != "" && held.ResourceVersion == s.ResourceVersion {
		return held
	}
	t.service(s)
	if len(t.held) >= t.sweepAt {
		maps.DeleteFunc(t.held, func(_ string, p weak.Pointer[corev1.Service]) bool { return p.Value() == nil })
		t.sweepAt = 2*len(t.held) + heldSweep
	}
	t.held[key] = weak.Make(s)
	return s
}
