package services_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/beehivetest"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/claim"
	"github.com/skerry-io/skerry/edge/internal/agents/probation"
	"github.com/skerry-io/skerry/edge/internal/core/agent/agenttest"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/kubeproxy"
	"github.com/skerry-io/skerry/edge/internal/site/services"
	"github.com/skerry-io/skerry/edge/internal/site/serviceview"
)

// A user who may only create Services in one namespace uses cloudcore's address: the proxy never
// gets it.
func TestClaims_02_ExternalAddressesAreJudged(t *testing.T) {
	guards := claim.Standard()
	guards.Host(netip.MustParseAddr("198.51.100.10"), "an address of cloudcore")
	guards.Host(netip.MustParseAddr("192.168.100.1"), "a gateway of this device")
	mine := func() *corev1.Service {
		return &corev1.Service{
			Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.9", ExternalIPs: []string{"198.51.100.10", "192.168.100.40", "127.0.0.1", "x"}},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
				{IP: "192.168.100.1"}, {IP: "192.168.100.41"}, {Hostname: "lb.example"}, {IP: "::ffff:198.51.100.10"},
			}}},
		}
	}
	for name, test := range map[string]struct {
		external []netip.Prefix
		want     []string
	}{
		"by default":      {nil, nil},
		"ranges":          {claim.Prefixes([]string{"192.168.100.0/24"}), []string{"192.168.100.40"}},
		"everything, but": {claim.Prefixes([]string{"0.0.0.0/0"}), []string{"192.168.100.40"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := mine()
			got, why := services.Rules{External: test.external, Guards: guards}.Judge(s)
			if diff := cmp.Diff(test.want, got.Spec.ExternalIPs); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if diff := cmp.Diff([]corev1.LoadBalancerIngress{{IP: "192.168.100.41"}, {Hostname: "lb.example"}}, got.Status.LoadBalancer.Ingress); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if len(why) == 0 || got.Spec.ClusterIP != "10.96.0.9" || !cmp.Equal(s, mine()) {
				t.Errorf("%q, and the Service of the View is %v", why, s)
			}
		})
	}
	plain := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.9"}}
	if got, why := (services.Rules{Guards: guards}).Judge(plain); got != plain || why != nil {
		t.Errorf("a Service without such addresses is copied: %q", why)
	}
}

// judged is a proxy that keeps the last Service.
type judged struct {
	*proxy
	last     atomic.Pointer[corev1.Service]
	unjudged atomic.Bool // it had cloudcore's address, for however long
}

func (p *judged) take(s *corev1.Service) {
	p.last.Store(s)
	if slices.Contains(s.Spec.ExternalIPs, "198.51.100.10") {
		p.unjudged.Store(true)
	}
}

func (p *judged) Open(context.Context) (kubeproxy.Proxy, string, error) {
	return p, kubeproxy.NFTables, nil
}
func (p *judged) OnServiceAdd(s *corev1.Service)       { p.take(s) }
func (p *judged) OnServiceUpdate(_, s *corev1.Service) { p.take(s) }

// The proxy gets filtered Services, and again when the rules have changed: a later gateway is
// protected too.
func TestClaims_02_TheProxyGetsJudgedServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := agenttest.NewAPI()
		api.Put(t, "nodes", &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "edge1"}})
		api.Put(t, "services", &corev1.Service{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Namespace: "bobs", Name: "mine"},
			Spec: corev1.ServiceSpec{ExternalIPs: []string{"198.51.100.10", "192.168.100.40"}},
		})
		corrected := make(chan struct{})
		close(corrected)
		view, err := serviceview.New(api.Config(), corrected)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { view.Follow(ctx) })
		defer func() { cancel(); running.Wait() }()
		var gateway atomic.Bool
		p := &judged{proxy: &proxy{disk: &disk{kept: map[string][]byte{}}}}
		m := services.New(services.Config{
			NodeName: "edge1", Enable: true, API: api.Config(), View: view, Driver: p, Memory: p.disk, Site: func() string { return "" },
			Rules: func(netip.Addr) services.Rules {
				r := services.Rules{External: claim.Prefixes([]string{"0.0.0.0/0"})}
				r.Guards.Host(netip.MustParseAddr("198.51.100.10"), "an address of cloudcore")
				if gateway.Load() {
					r.Guards.Host(netip.MustParseAddr("192.168.100.40"), "a gateway of this device")
				}
				return r
			},
		})
		beehivetest.Run(t, []beehivetest.Peer{{Name: "edgehub"}}, beehive.Entry{Module: m, Groups: []message.Group{linkstate.Agents}, Restart: beehive.Never()})
		time.Sleep(2 * time.Minute)
		if s := p.last.Load(); s == nil || !cmp.Equal(s.Spec.ExternalIPs, []string{"192.168.100.40"}) {
			t.Errorf("the proxy has %v", s)
		}
		if p.unjudged.Load() {
			t.Error("the proxy had the address of cloudcore for a while")
		}
		gateway.Store(true)
		time.Sleep(2 * time.Minute)
		if s := p.last.Load(); len(s.Spec.ExternalIPs) > 0 || m.State().Note == "" {
			t.Errorf("the proxy has %v, and the status says %q", s.Spec.ExternalIPs, m.State().Note)
		}
	})
}

// An address that no guard has, and that cuts off the cloud, is withdrawn by the device and
// reported; a simultaneous Service keeps its own, and a newer one is tried.
func TestClaims_02_AddressThatTakesTheLinkIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := agenttest.NewAPI()
		api.Put(t, "nodes", &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "edge1"}})
		put := func(name, address string) {
			api.Put(t, "services", &corev1.Service{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Namespace: "bobs", Name: name, UID: types.UID(name)},
				Spec: corev1.ServiceSpec{ExternalIPs: []string{address}},
			})
		}
		put("evil", "203.0.113.7")
		put("fine", "203.0.113.8")
		corrected := make(chan struct{})
		close(corrected)
		view, err := serviceview.New(api.Config(), corrected)
		if err != nil {
			t.Fatal(err)
		}
		p := &kernel{proxy: &proxy{disk: &disk{kept: map[string][]byte{}}}, has: map[string][]string{}}
		held := probation.New(probation.Config{Memory: &disk{kept: map[string][]byte{}}, Ask: func(context.Context) error {
			if slices.Contains(p.of("evil"), "203.0.113.7") {
				return errors.New("connection refused")
			}
			return nil
		}})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { view.Follow(ctx) })
		running.Go(func() { _ = held.Run(ctx) })
		defer func() { cancel(); running.Wait() }()
		m := services.New(services.Config{
			NodeName: "edge1", Enable: true, API: api.Config(), View: view, Driver: p, Memory: p.disk, Site: func() string { return "" }, Probation: held,
			Rules: func(netip.Addr) services.Rules {
				return services.Rules{External: claim.Prefixes([]string{"203.0.113.0/24"})}
			},
		})
		beehivetest.Run(t, []beehivetest.Peer{{Name: "edgehub"}}, beehive.Entry{Module: m, Groups: []message.Group{linkstate.Agents}, Restart: beehive.Never()})
		time.Sleep(10 * time.Minute)
		if evil, fine := p.of("evil"), p.of("fine"); len(evil) > 0 || !slices.Equal(fine, []string{"203.0.113.8"}) {
			t.Errorf("the proxy has %q of the one that cuts the device off, and %q of the other", evil, fine)
		}
		if note := m.State().Note; !strings.Contains(note, "bobs/evil") || !strings.Contains(note, "cut this device off") {
			t.Errorf("the status is %q", note)
		}
	})
}

// kernel is a proxy that has the external addresses of Services.
type kernel struct {
	*proxy
	mu  sync.Mutex
	has map[string][]string
}

func (k *kernel) take(s *corev1.Service) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.has[s.Name] = s.Spec.ExternalIPs
}

func (k *kernel) of(name string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.has[name]
}

func (k *kernel) Open(context.Context) (kubeproxy.Proxy, string, error) {
	return k, kubeproxy.NFTables, nil
}
func (k *kernel) OnServiceAdd(s *corev1.Service)       { k.take(s) }
func (k *kernel) OnServiceUpdate(_, s *corev1.Service) { k.take(s) }
