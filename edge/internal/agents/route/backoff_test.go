package route_test

import (
	"context"
	"maps"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/beehivetest"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/route"
	"github.com/skerry-io/skerry/edge/internal/core/agent/agenttest"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
)

// table is a kernel of one interface, whose clock is the bubble's. It notes when routes are added.
type table struct {
	mu     sync.Mutex
	routes map[netroute.Key]netroute.Found
	events chan netroute.Event
	added  chan time.Time
}

func newTable() *table {
	return &table{routes: map[netroute.Key]netroute.Found{}, events: make(chan netroute.Event, 100), added: make(chan time.Time, 100)}
}

func (k *table) Routes(_ context.Context, reset func(), visit func(netroute.Found)) error {
	k.mu.Lock()
	all := maps.Clone(k.routes)
	k.mu.Unlock()
	reset()
	for _, f := range all {
		visit(f)
	}
	return nil
}

func (*table) Links(context.Context) ([]netroute.Link, error) {
	return []netroute.Link{{Index: 1, Name: "eth0", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.1.2/24")}}}, nil
}

func (k *table) Watch(ctx context.Context, started func(), handle func(netroute.Event)) error {
	started()
	for {
		select {
		case e := <-k.events:
			handle(e)
		case <-ctx.Done():
			return nil
		}
	}
}

func (k *table) Add(ctx context.Context, r netroute.Route) error {
	k.added <- time.Now()
	return k.Replace(ctx, r)
}

func (k *table) Replace(_ context.Context, r netroute.Route) error {
	for i := range r.Hops {
		r.Hops[i].Interface = "eth0"
	}
	f := netroute.Found{Route: r, Protocol: protocol}
	k.mu.Lock()
	k.routes[r.Key] = f
	k.mu.Unlock()
	k.events <- netroute.Event{Route: &f}
	return nil
}

func (k *table) Delete(_ context.Context, r netroute.Route) error {
	k.mu.Lock()
	f, there := k.routes[r.Key]
	delete(k.routes, r.Key)
	k.mu.Unlock()
	if there {
		k.events <- netroute.Event{Route: &f, Gone: true}
	}
	return nil
}

func (k *table) DeleteForeign(ctx context.Context, f netroute.Found) error {
	return k.Delete(ctx, f.Route)
}

func (k *table) Restore(ctx context.Context, f netroute.Found) error { return k.Replace(ctx, f.Route) }

func (*table) Ours(f netroute.Found) bool { return f.Protocol == protocol }

func (*table) Ping(context.Context, netip.Addr, string) error { return nil }

// kept is a State in memory.
type kept struct {
	mu  sync.Mutex
	all map[string][]byte
}

func (s *kept) Load() (map[string][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.all), nil
}

func (s *kept) Save(_ context.Context, changes map[string][]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.all, changes)
	return nil
}

// Another process deletes the route whenever it exists. The first time it is restored within a
// second, however long ago the last reading was; then after 1 s, 2 s, 4 s, up to 5 min. Ten quiet
// minutes later it is restored at once again.
func TestRoutes_16_RepairsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, kernel, outbox := agenttest.NewAPI(), newTable(), &agenttest.Outbox{}
		api.Put(t, "nodes", &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: nodeName}})
		api.Put(t, "servicecidrs", &networkingv1.ServiceCIDR{
			TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"},
			ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/12"}},
		})
		api.Put(t, "staticroutes", &v1alpha1.StaticRoute{
			TypeMeta:   metav1.TypeMeta{APIVersion: "skerry.io/v1alpha1", Kind: "StaticRoute"},
			ObjectMeta: metav1.ObjectMeta{Name: "office"}, Spec: spec("172.20.0.0/16", "10.0.1.1"),
		})
		beehivetest.Run(t, nil, beehive.Entry{Module: route.New(route.Config{
			NodeName: nodeName, BootID: "boot", State: &kept{all: map[string][]byte{}}, Reporter: outbox, API: api.Config(),
			Open: func(context.Context) (route.Kernel, func(), error) { return kernel, func() {}, nil },
		})})
		<-kernel.added
		time.Sleep(10*time.Minute + 300*time.Millisecond) // no event for long
		del := func() time.Time {
			if err := kernel.Delete(t.Context(), netroute.Route{Key: netroute.NewKey(0, netip.MustParsePrefix("172.20.0.0/16"), 0)}); err != nil {
				t.Fatal(err)
			}
			return time.Now()
		}
		var pauses []time.Duration
		for range 12 {
			gone := del()
			pauses = append(pauses, (<-kernel.added).Sub(gone).Round(time.Second))
			synctest.Wait()
		}
		s := time.Second
		want := []time.Duration{0, s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 64 * s, 128 * s, 256 * s, 300 * s, 300 * s}
		if diff := cmp.Diff(want, pauses); diff != "" {
			t.Errorf("pauses before a repair (-want +got):\n%s", diff)
		}
		time.Sleep(10*time.Minute + 5*time.Second)
		gone := del()
		if pause := (<-kernel.added).Sub(gone); pause >= time.Second {
			t.Errorf("after ten quiet minutes it was back after %v", pause)
		}
	})
}
