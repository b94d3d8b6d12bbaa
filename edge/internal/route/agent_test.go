package route_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/kernel/netroute"
	"github.com/skerry-io/skerry/edge/internal/linkstate"
	"github.com/skerry-io/skerry/edge/internal/object"
	"github.com/skerry-io/skerry/edge/internal/route"
	"github.com/skerry-io/skerry/edge/internal/store"
	"github.com/skerry-io/skerry/tests/netns/wire"
)

const (
	nodeName = "edge1"
	protocol = 158
)

// A lab is a node with two networks, a router on each, and a server behind both. The cloud is behind the first router:
//
//	                  eth0 10.0.0.2/24 - [a] - 10.9.0.2 eth0
//	[node]  <                                                  > [server] 172.20.0.1, 172.21.0.1, 2001:db8:20::1, the cloud 198.51.100.10
//	                  eth1 10.0.1.2/24 - [b] - 10.9.1.2 eth1
//
// The objects are in the API whatever becomes of the link, as they are in an edge's store.
type lab struct {
	t                  testing.TB
	node, a, b, server *wire.Host
	kernel             *netroute.Driver
	api                *api
	store              *store.Store
	boot               string
	tune               func(*route.Config)

	mu      sync.Mutex
	reports map[string][]v1alpha1.StaticRouteNode // a removal has an empty name
	told    chan struct{}                         // one slot: something was reported
	stop    func()
	agent   *route.Agent
	events  *record.FakeRecorder
	hub     *hub
}

func newLab(t testing.TB) *lab {
	t.Helper()
	l := &lab{t: t, node: wire.NewHost(t), a: wire.NewHost(t), b: wire.NewHost(t), server: wire.NewHost(t), api: newAPI(t), boot: "first boot",
		reports: map[string][]v1alpha1.StaticRouteNode{}, told: make(chan struct{}, 1)}
	for n, r := range []*wire.Host{l.a, l.b} {
		name := fmt.Sprintf("eth%d", n)
		wire.Cable(t, l.node, name, r, "node")
		l.node.Address(t, name, fmt.Sprintf("10.0.%d.2/24", n))
		r.Address(t, "node", fmt.Sprintf("10.0.%d.1/24", n))
		l.node.Address(t, name, fmt.Sprintf("2001:db8:%d::2/64", n))
		r.Address(t, "node", fmt.Sprintf("2001:db8:%d::1/64", n))
		wire.Cable(t, l.server, name, r, "server")
		l.server.Address(t, name, fmt.Sprintf("10.9.%d.2/24", n))
		r.Address(t, "server", fmt.Sprintf("10.9.%d.1/24", n))
		l.server.Address(t, name, fmt.Sprintf("2001:db8:9%d::2/64", n))
		r.Address(t, "server", fmt.Sprintf("2001:db8:9%d::1/64", n))
		for _, to := range []string{"172.20.0.0/16", "172.21.0.0/16", "198.51.100.0/24"} {
			r.Route(t, to, fmt.Sprintf("10.9.%d.2", n))
		}
		r.Route(t, "2001:db8:20::/48", fmt.Sprintf("2001:db8:9%d::2", n))
		l.server.Route(t, fmt.Sprintf("10.0.%d.0/24", n), fmt.Sprintf("10.9.%d.1", n))
		l.server.Route(t, fmt.Sprintf("2001:db8:%d::/64", n), fmt.Sprintf("2001:db8:9%d::1", n))
	}
	for _, address := range []string{"172.20.0.1/32", "172.21.0.1/32", "198.51.100.10/32", "2001:db8:20::1/128"} {
		l.server.Address(t, "lo", address)
	}
	l.node.Route(t, "0.0.0.0/0", "10.0.0.1")
	l.node.Must(t, func() (err error) {
		l.kernel, err = netroute.Open(netroute.Config{Protocol: protocol})
		return err
	})
	t.Cleanup(l.kernel.Close)
	var err error
	if l.store, err = store.Open(t.Context(), store.Config{Path: t.TempDir() + "/store.db"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.store.Close() })
	l.api.node(t, "node 1", map[string]string{v1alpha1.EdgeLabel: "", "zone": "north"})
	return l
}

// start starts an agent as edgecore does, and ends it with the test.
func (l *lab) start(linked bool) {
	l.t.Helper()
	l.events = record.NewFakeRecorder(1000)
	l.hub = &hub{lab: l, linked: linked, relink: make(chan struct{}, 1)}
	c := route.Config{
		NodeName: nodeName, BootID: l.boot, Open: func(context.Context) (route.Tools, error) {
			return route.Tools{Kernel: l.kernel, Events: l.events, Close: func() {}}, nil
		}, State: route.InStore(l.store), Reporter: l, API: l.api.config(), Hub: "edgehub",
		Protected:    []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:bad::/48")},
		ProbeTimeout: 2 * time.Second, FullCheck: 5 * time.Second,
	}
	if l.tune != nil {
		l.tune(&c)
	}
	l.agent = route.New(c)
	runner, err := beehive.NewRunner(beehive.Config{}, []beehive.Entry{
		{Module: l.agent, Groups: []message.Group{linkstate.Group}},
		{Module: l.hub},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(l.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- runner.Run(ctx) }()
	l.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			l.t.Errorf("the agent ended with %v", err)
		}
	})
	l.t.Cleanup(l.stop)
}

// hub is the module with the link: a request goes to the cloud as an echo goes, and its answer comes back.
type hub struct {
	lab    *lab
	mu     sync.Mutex
	linked bool
	relink chan struct{}
	cloud  string // "" for 198.51.100.10
}

func (h *hub) Name() message.Name { return "edgehub" }

func (h *hub) set(linked bool) {
	h.mu.Lock()
	h.linked = linked
	h.mu.Unlock()
	h.relink <- struct{}{}
}

func (h *hub) Run(ctx context.Context, port *beehive.Port) error {
	port.Ready()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		epoch := uint64(0)
		for {
			h.mu.Lock()
			linked := h.linked
			h.mu.Unlock()
			epoch++
			if linked {
				_ = port.SendToGroup(ctx, linkstate.Group, linkstate.Up.New(message.Resource{}, linkstate.Link{Epoch: epoch, Remote: "198.51.100.10:10000"}))
			} else if epoch > 1 {
				_ = port.SendToGroup(ctx, linkstate.Group, linkstate.Down.New(message.Resource{}, linkstate.Loss{Epoch: epoch - 1, Reason: errors.New("cut")}))
			}
			select {
			case <-h.relink:
			case <-ctx.Done():
				return
			}
		}
	})
	for {
		m, err := port.Receive(ctx)
		if err != nil {
			return nil
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			cloud := "198.51.100.10"
			if h.cloud != "" {
				cloud = h.cloud
			}
			if err := h.lab.kernel.Ping(ctx, netip.MustParseAddr(cloud), ""); err != nil {
				_ = port.Reply(ctx, m, linkstate.ErrNoLink)
				return
			}
			_ = port.Reply(ctx, m, &topicpb.APIResponse{Code: 200})
		})
	}
}

// Report implements route.Reporter.
func (l *lab) Report(_ context.Context, ref object.Ref, uid types.UID, body []byte) error {
	var e v1alpha1.StaticRouteNode
	if string(body) != "null" {
		if err := json.Unmarshal(body, &e); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.told <- struct{}{}:
	default:
	}
	l.reports[ref.Name] = append(l.reports[ref.Name], e)
	return nil
}

// last is what was reported last.
func (l *lab) last(name string) v1alpha1.StaticRouteNode {
	l.mu.Lock()
	defer l.mu.Unlock()
	if all := l.reports[name]; len(all) > 0 {
		return all[len(all)-1]
	}
	return v1alpha1.StaticRouteNode{Reason: "nothing reported"}
}

func (l *lab) all(name string) []v1alpha1.StaticRouteNode {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]v1alpha1.StaticRouteNode{}, l.reports[name]...)
}

// until waits for something that must come.
func (l *lab) until(what string, is func() error) {
	l.t.Helper()
	end := time.NewTimer(time.Minute)
	defer end.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := is()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-end.C:
			l.t.Fatalf("%s: %v", what, err)
		}
	}
}

// reported waits until that reason is the last one reported for a generation.
func (l *lab) reported(name, reason string, generation int64) v1alpha1.StaticRouteNode {
	l.t.Helper()
	var e v1alpha1.StaticRouteNode
	l.until(name+" to be "+reason, func() error {
		if e = l.last(name); e.Reason != reason || e.ObservedGeneration != generation {
			return fmt.Errorf("last reported: %s of generation %d: %s", e.Reason, e.ObservedGeneration, e.Message)
		}
		return nil
	})
	return e
}

// routes lists our routes in the kernel as text.
func (l *lab) routes() []string {
	l.t.Helper()
	var all []string
	err := l.kernel.Routes(l.t.Context(), func() { all = nil }, func(f netroute.Found) {
		if l.kernel.Ours(f) {
			text := f.Key.String()
			for _, h := range f.Hops {
				text += fmt.Sprintf(" via %s dev %s", h.Gateway, h.Interface)
			}
			all = append(all, text)
		}
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return all
}

func (l *lab) have(want ...string) {
	l.t.Helper()
	l.until("the kernel's routes", func() error {
		got := l.routes()
		if len(got) != len(want) {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		for _, w := range want {
			if !strings.Contains(strings.Join(got, "\n"), w) {
				return fmt.Errorf("got %q, want %q", got, want)
			}
		}
		return nil
	})
}

func (l *lab) reach(to string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 5*time.Second)
	defer cancel()
	if err := l.kernel.Ping(ctx, netip.MustParseAddr(to), ""); err != nil {
		l.t.Errorf("%s: %v", to, err)
	}
}

func (l *lab) delRoute(prefix string) {
	l.t.Helper()
	p := netip.MustParsePrefix(prefix)
	err := l.kernel.Delete(l.t.Context(), netroute.Route{Key: netroute.NewKey(0, p, 0), Type: netroute.Unicast})
	if err != nil {
		l.t.Fatal(err)
	}
}

func spec(subnet, gateway string) v1alpha1.StaticRouteSpec {
	return v1alpha1.StaticRouteSpec{Subnet: subnet, Gateway: gateway}
}

func TestRoutes_01_NoGatewayTakesTheDetectedOne(t *testing.T) {
	l := newLab(t)
	far := v1alpha1.StaticRouteSpec{Subnet: "172.20.0.0/16", GatewayDetection: &v1alpha1.GatewayDetection{ProbeIP: "192.0.2.1"}}
	l.api.route(t, "office", far)
	l.api.route(t, "standard", v1alpha1.StaticRouteSpec{Subnet: "172.21.0.0/16"}) // 10.0.0.1, which is on a network of the node
	l.api.route(t, "none", v1alpha1.StaticRouteSpec{Subnet: "2001:db8:20::/48"})  // there is no way to fd00::1
	l.start(true)
	if e := l.reported("none", v1alpha1.RouteNoGateway, 1); !strings.Contains(e.Message, "fd00::1") {
		t.Errorf("message: %s", e.Message)
	}
	e := l.reported("office", v1alpha1.RouteApplied, 1)
	if len(e.State.NextHops) != 1 || e.State.NextHops[0].Gateway != "10.0.0.1" || e.State.NextHops[0].Interface != "eth0" {
		t.Errorf("resolved to %+v", e.State)
	}
	l.reach("172.20.0.1")
	// The node's own way changes: the route follows.
	l.node.Route(t, "0.0.0.0/0", "10.0.1.1")
	l.have("172.20.0.0/16 table 254 metric 0 via 10.0.1.1 dev eth1", "172.21.0.0/16 table 254 metric 0 via 10.0.0.1 dev eth0")
	l.reach("172.20.0.1")
	l.reach("172.21.0.1")
}

func TestRoutes_02_ExplicitGateway(t *testing.T) {
	l := newLab(t)
	l.start(true)
	l.api.route(t, "office", spec("172.20.0.0/16", "10.0.1.1"))
	l.reported("office", v1alpha1.RouteApplied, 1)
	l.have("172.20.0.0/16 table 254 metric 0 via 10.0.1.1 dev eth1")
	l.reach("172.20.0.1")
	l.api.remove(t, "staticroutes", "office")
	l.have()
}

func TestRoutes_04_LabelRemovedAndPutBack(t *testing.T) {
	l := newLab(t)
	s := spec("172.20.0.0/16", "10.0.1.1")
	s.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"zone": "north"}}
	l.api.route(t, "office", s)
	s = spec("172.21.0.0/16", "10.0.1.1")
	s.NodePool = "warehouse"
	l.api.route(t, "pool", s)
	l.start(true)
	l.reported("office", v1alpha1.RouteApplied, 1)
	l.have("172.20.0.0/16")
	l.api.node(t, "node 1", map[string]string{v1alpha1.NodePoolLabel: "warehouse"})
	l.reported("pool", v1alpha1.RouteApplied, 1)
	l.reported("office", "", 0) // said to be gone
	l.have("172.21.0.0/16")
	l.api.node(t, "node 1", map[string]string{"zone": "north"})
	l.reported("office", v1alpha1.RouteApplied, 1)
	l.have("172.20.0.0/16")
}

// What was reported of a node that was deleted is lost with it: the node that comes back says all of it again.
func TestRoutes_05_AnotherNodeOfTheNameReportsAnew(t *testing.T) {
	l := newLab(t)
	l.api.route(t, "office", spec("172.20.0.0/16", "10.0.1.1"))
	l.start(true)
	l.reported("office", v1alpha1.RouteApplied, 1)
	l.api.node(t, "node 2", map[string]string{v1alpha1.EdgeLabel: ""})
	l.until("a second report", func() error {
		if n := len(l.all("office")); n < 2 {
			return fmt.Errorf("%d reports", n)
		}
		return nil
	})
	l.have("172.20.0.0/16")
}

func TestRoutes_06_DeletedRouteGoesBeforeItIsReported(t *testing.T) {
	l := newLab(t)
	l.api.route(t, "office", spec("172.20.0.0/16", "10.0.1.1"))
	l.start(true)
	l.reported("office", v1alpha1.RouteApplied, 1)
	l.api.route(t, "office", spec("172.20.0.0/16", "10.0.1.1"), func(o *v1alpha1.StaticRoute) {
		now := metav1.Now()
		o.DeletionTimestamp, o.Finalizers = &now, []string{v1alpha1.StaticRouteFinalizer}
	})
	l.reported("office", "", 0)
	if got := l.routes(); len(got) != 0 {
		t.Errorf("said to be gone, and there: %q", got)
	}
}

func TestRoutes_07_UnreachableGateway(t *testing.T) {
	l := newLab(t)
	l.start(true)
	l.api.route(t, "far", spec("172.20.0.0/16", "10.7.7.7"))
	l.api.route(t, "self", spec("172.21.0.0/16", "10.0.0.2"))
	if e := l.reported("far", v1alpha1.RouteGatewayUnreachable, 1); !strings.Contains(e.Message, "10.7.7.7 is on no network") {
		t.Errorf("message: %s", e.Message)
	}
	if e := l.reported("self", v1alpha1.RouteGatewayUnreachable, 1); !strings.Contains(e.Message, "this node's own address on eth0") {
		t.Errorf("message: %s", e.Message)
	}
	l.have()
	// The network appears: so does the route.
	l.node.Address(t, "eth1", "10.7.7.1/24")
	l.reported("far", v1alpha1.RouteApplied, 1)
	l.have("172.20.0.0/16 table 254 metric 0 via 10.7.7.7 dev eth1")
}

func TestRoutes_08_ProtectedOverlapRefused(t *testing.T) {
	l := newLab(t)
	l.start(true)
	l.api.route(t, "fine", spec("172.20.0.0/16", "10.0.1.1"))
	l.reported("fine", v1alpha1.RouteApplied, 1) // the link is up, so the cloud's address is known
	for name, c := range map[string]struct{ subnet, gateway, why string }{
		"configured": {"203.0.113.128/25", "10.0.1.1", "which edgecore.yaml protects"},
		"wider":      {"203.0.0.0/8", "10.0.1.1", "which edgecore.yaml protects"},
		"ipv6":       {"2001:db8:bad:1::/64", "2001:db8:1::1", "which edgecore.yaml protects"},
		"cloud":      {"198.51.100.0/24", "10.0.1.1", "the address of cloudcore"},
		"own":        {"10.0.0.0/30", "10.0.1.1", "this node's"},
		"gateway":    {"10.0.0.1/32", "10.0.1.1", "this node's gateway"},
		"pods":       {"10.244.0.0/16", "10.0.1.1", "the range of this node's pods"},
		"default":    {"0.0.0.0/0", "10.0.1.1", "overlaps"},
		"default6":   {"::/0", "2001:db8:1::1", "overlaps"},
		"loopback":   {"127.8.0.0/16", "10.0.1.1", "the loopback network"},
		"multicast6": {"ff05::/16", "2001:db8:1::1", "the multicast networks"},
	} {
		s := spec(c.subnet, c.gateway)
		if name == "default" {
			s.Table = 30 // in no table
		}
		l.api.route(t, name, s)
		if e := l.reported(name, v1alpha1.RouteProtected, 1); !strings.Contains(e.Message, c.why) {
			t.Errorf("%s: message %q, want %q in it", name, e.Message, c.why)
		}
	}
	l.have("172.20.0.0/16")
}

func TestRoutes_09_NoNodeMatches(t *testing.T) {
	l := newLab(t)
	s := spec("172.20.0.0/16", "10.0.1.1")
	s.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"zone": "nowhere"}}
	l.api.route(t, "nobody", s)
	l.api.route(t, "office", spec("172.21.0.0/16", "10.0.1.1"))
	l.start(true)
	l.reported("office", v1alpha1.RouteApplied, 1)
	if got := l.all("nobody"); len(got) != 0 {
		t.Errorf("reported of a route that is for others: %v", got)
	}
	l.have("172.21.0.0/16")
}

func TestRoutes_10_TableThirty(t *testing.T) {
	l := newLab(t)
	s := spec("172.20.0.0/16", "10.0.1.1")
	s.Table, s.Metric = 30, 5
	l.api.route(t, "office", s)
	l.start(true)
	l.reported("office", v1alpha1.RouteApplied, 1)
	l.have("172.20.0.0/16 table 30 metric 5 via 10.0.1.1 dev eth1")
}

func TestRoutes_12_IPv6(t *testing.T) {
	l := newLab(t)
	l.start(true)
	l.api.route(t, "office", spec("2001:db8:20::/48", "2001:db8::1"))
	l.reported("office", v1alpha1.RouteApplied, 1)
	l.reach("2001:db8:20::1")
	fe80 := l.b.LinkLocal(t, "node")
	l.api.route(t, "office", v1alpha1.StaticRouteSpec{Subnet: "2001:db8:20::/48", NextHops: []v1alpha1.NextHop{{Gateway: fe80.String(), Interface: "eth1"}}})
	l.reported("office", v1alpha1.RouteApplied, 2)
	l.have("2001:db8:20::/48 table 254 metric 1024 via " + fe80.String() + " dev eth1")
	l.reach("2001:db8:20::1")
}

func TestRoutes_13_ECMP(t *testing.T) {
	l := newLab(t)
	l.start(true)
	two := []v1alpha1.NextHop{{Gateway: "10.0.0.1", Weight: 3}, {Gateway: "10.0.1.1", Weight: 1}}
	l.api.route(t, "office", v1alpha1.StaticRouteSpec{Subnet: "172.20.0.0/16", NextHops: two})
	e := l.reported("office", v1alpha1.RouteApplied, 1)
	if len(e.State.NextHops) != 2 || e.State.NextHops[0].Weight != 3 {
		t.Errorf("resolved to %+v", e.State)
	}
	l.reach("172.20.0.1")
	l.api.route(t, "office", v1alpha1.StaticRouteSpec{Subnet: "172.20.0.0/16", NextHops: two[1:]})
	l.reported("office", v1alpha1.RouteApplied, 2)
	l.have("172.20.0.0/16 table 254 metric 0 via 10.0.1.1 dev eth1")
	l.reach("172.20.0.1")
}

// A ping that runs all the time, every millisecond or so, never finds the network without a route.
func TestRoutes_14_NoMomentWithoutARoute(t *testing.T) {
	l := newLab(t)
	// Without our route the server can't be reached at all.
	l.node.Route(t, "0.0.0.0/0", "10.0.0.1")
	l.a.Route(t, "172.20.0.0/16", "10.9.0.2")
	l.start(true)
	l.api.route(t, "office", spec("172.20.0.0/16", "10.0.1.1"))
	l.reported("office", v1alpha1.RouteApplied, 1)
	ctx, cancel := context.WithCancel(t.Context())
	var missing []string
	ended := make(chan int)
	go func() {
		looks := 0
		for ctx.Err() == nil {
			// The kernel's own answer for where a packet goes now: the default route only if ours is missing.
			h, err := l.kernel.NextHop(netip.MustParseAddr("172.20.0.1"))
			if looks++; err != nil || h.Gateway.String() == "10.0.0.1" && h.Interface == "eth0" {
				missing = append(missing, fmt.Sprint(h, err))
			}
		}
		ended <- looks
	}()
	l.b.Address(t, "node", "10.0.1.77/24")
	for i := range int64(10) {
		s := spec("172.20.0.0/16", "10.0.1.1")
		switch i % 5 {
		case 0:
			s.MTU = 1400
		case 1:
			s.Metric = 7 // another key: the new one first, then the old one goes
		case 2:
			s.Gateway = "10.0.1.77"
		case 3:
			s.Gateway, s.NextHops = "", []v1alpha1.NextHop{{Gateway: "10.0.1.1"}, {Gateway: "10.0.1.77"}}
		case 4:
			s.PreferredSource = "10.0.1.2"
		}
		l.api.route(t, "office", s)
		l.reported("office", v1alpha1.RouteApplied, i+2)
	}
	l.reach("172.20.0.1")
	cancel()
	looks := <-ended
	if len(missing) > 0 {
		t.Errorf("%d of %d packets would have gone elsewhere: %v", len(missing), looks, missing[0])
	}
	t.Logf("%d looks", looks)
	l.have("172.20.0.0/16")
}

func TestRoutes_15_ForeignEqualRouteUntouched(t *testing.T) {
	l := newLab(t)
	l.node.Route(t, "172.20.0.0/16", "10.0.0.1")
	l.start(true)
	l.api.route(t, "office", spec("172.20.0.0/16", "10.0.1.1"))
	if e := l.reported("office", v1alpha1.RouteConflict, 1); !strings.Contains(e.Message, "a route that Skerry didn't make (protocol 3, via 10.0.0.1)") {
		t.Errorf("message: %s", e.Message)
	}
	l.have()
	s := spec("172.20.0.0/16", "10.0.1.1")
	s.OnConflict = v1alpha1.ConflictAdopt
	l.api.route(t, "office", s)
	l.reported("office", v1alpha1.RouteApplied, 2)
	l.have("172.20.0.0/16 table 254 metric 0 via 10.0.1.1 dev eth1")
	h, err := l.kernel.NextHop(netip.MustParseAddr("172.20.0.1"))
	if err != nil || h.Interface != "eth1" {
		t.Errorf("the way is %v, %v", h, err)
	}
}

func TestRoutes_16_DeletedByHand(t *testing.T) {
	l := newLab(t)
	s := spec("172.21.0.0/16", "10.0.1.1")
	s.DriftPolicy = v1alpha1.DriftReport
	l.api.route(t, "watched", s)
	l.api.route(t, "office", spec("172.20.0.0/16", "10.0.1.1"))
	l.start(true)
	l.reported("office", v1alpha1.RouteApplied, 1)
	l.reported("watched", v1alpha1.RouteApplied, 1)
	l.delRoute("172.20.0.0/16")
	l.have("172.20.0.0/16", "172.21.0.0/16")
	l.until("the repair to be told", func() error {
		if e := l.last("office"); e.Repairs != 1 || e.Reason != v1alpha1.RouteApplied {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	l.delRoute("172.21.0.0/16")
	l.reported("watched", v1alpha1.RouteDrifted, 1)
	l.have("172.20.0.0/16")
	s.MTU = 1400 // the administrator wants it again
	l.api.route(t, "watched", s)
	l.reported("watched", v1alpha1.RouteApplied, 2)
	l.delRoute("172.21.0.0/16")
	l.reported("watched", v1alpha1.RouteDrifted, 2)
	// Again and again: ever slower, and said to be so.
	for l.last("office").Reason != v1alpha1.RouteDegraded {
		before := l.last("office").Repairs
		l.delRoute("172.20.0.0/16")
		l.until("the next repair", func() error {
			if n := l.last("office").Repairs; n == before {
				return fmt.Errorf("%d repairs", n)
			}
			return nil
		})
	}
	if e := l.reported("office", v1alpha1.RouteDegraded, 1); e.Repairs < 5 {
		t.Errorf("degraded after %d repairs", e.Repairs)
	}
}

func TestRoutes_17_InterfaceDownAndUp(t *testing.T) {
	l := newLab(t)
	l.api.route(t, "office", spec("172.20.0.0/16", "10.0.1.1"))
	l.api.route(t, "office6", spec("2001:db8:20::/48", "2001:db8:1::1"))
	l.start(true)
	l.reported("office", v1alpha1.RouteApplied, 1)
	l.reported("office6", v1alpha1.RouteApplied, 1)
	l.node.Down(t, "eth1")
	if e := l.reported("office", v1alpha1.RouteInterfaceDown, 1); !strings.Contains(e.Message, "eth1") {
		t.Errorf("message: %s", e.Message)
	}
	l.have()
	l.node.Up(t, "eth1")
	l.node.Address(t, "eth1", "2001:db8:1::2/64") // the kernel takes IPv6 addresses away with the interface
	l.reported("office", v1alpha1.RouteApplied, 1)
	l.reported("office6", v1alpha1.RouteApplied, 1)
	l.reach("172.20.0.1")
	l.reach("2001:db8:20::1")
	if e := l.last("office"); e.Repairs != 0 {
		t.Errorf("counted as %d repairs: nobody changed the route", e.Repairs)
	}
}

func TestRoutes_18_TwoObjectsOneKey(t *testing.T) {
	l := newLab(t)
	l.api.route(t, "older", spec("172.20.0.0/16", "10.0.0.1"))
	l.api.route(t, "younger", spec("172.20.0.0/16", "10.0.1.1"), func(o *v1alpha1.StaticRoute) { o.CreationTimestamp = metav1.Unix(2_000_000_000, 0) })
	l.start(true)
	l.reported("older", v1alpha1.RouteApplied, 1)
	if e := l.reported("younger", v1alpha1.RouteConflict, 1); !strings.Contains(e.Message, "StaticRoute older, which is older") {
		t.Errorf("message: %s", e.Message)
	}
	l.have("via 10.0.0.1 dev eth0")
	l.api.remove(t, "staticroutes", "older")
	l.reported("younger", v1alpha1.RouteApplied, 1)
	l.have("via 10.0.1.1 dev eth1")
}

// After a reboot the kernel has nothing, and there is no link; the objects are in the store.
func TestRoutes_19_RebootWithoutTheCloud(t *testing.T) {
	l := newLab(t)
	l.api.route(t, "office", spec("172.20.0.0/16", "10.0.1.1"))
	l.api.route(t, "plant", spec("172.21.0.0/16", "10.0.0.1"))
	l.start(true)
	l.reported("office", v1alpha1.RouteApplied, 1)
	l.reported("plant", v1alpha1.RouteApplied, 1)
	l.stop()
	l.delRoute("172.20.0.0/16")
	l.delRoute("172.21.0.0/16")
	l.boot = "second boot"
	before := len(l.all("office"))
	l.start(false)
	l.have("172.20.0.0/16", "172.21.0.0/16")
	l.reach("172.20.0.1")
	// The link comes back: one route was changed in the cloud, the other deleted.
	l.hub.set(true)
	l.api.route(t, "office", spec("172.20.0.0/16", "10.0.0.1"))
	l.api.remove(t, "staticroutes", "plant")
	l.reported("office", v1alpha1.RouteApplied, 2)
	l.have("172.20.0.0/16 table 254 metric 0 via 10.0.0.1 dev eth0")
	if n := len(l.all("office")) - before; n != 1 {
		t.Errorf("%d reports, want 1: the reboot changed nothing that the cloud does not know", n)
	}
	if e := l.last("office"); e.Repairs != 0 {
		t.Errorf("the reboot counts as %d repairs", e.Repairs)
	}
}

// A process that starts finds routes of ours that nothing wants, and takes them away: but not before it knows what is wanted.
func TestRoutes_09_Orphans(t *testing.T) {
	l := newLab(t)
	orphan := netroute.Route{Key: netroute.NewKey(30, netip.MustParsePrefix("172.29.0.0/16"), 0), Type: netroute.Unicast, Hops: []netroute.Hop{{Gateway: netip.MustParseAddr("10.0.1.1")}}}
	if err := l.kernel.Add(t.Context(), orphan); err != nil {
		t.Fatal(err)
	}
	l.api.remove(t, "nodes", nodeName) // nothing is known of this node
	l.start(true)
	l.api.route(t, "office", spec("172.20.0.0/16", "10.0.1.1"))
	l.until("the agent to say what it waits for", func() error {
		if w := l.agent.Summary().Waiting; !strings.Contains(w, "this node's labels") {
			return fmt.Errorf("it says %q", w)
		}
		return nil
	})
	if got := l.routes(); len(got) != 1 {
		t.Fatalf("touched before anything was known: %q", got)
	}
	l.api.node(t, "node 1", map[string]string{})
	l.have("172.20.0.0/16")
}

// The link to the cloud goes through a tunnel whose other end is not the cloud's address: no arithmetic can know that a route for that end cuts it.
func TestRoutes_20_CutsTheLinkAndIsRolledBack(t *testing.T) {
	for name, more := range map[string]int{"alone": 0, "among others": 5} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.tune = func(c *route.Config) { c.ProbeTimeout = time.Second }
			l.start(true)
			l.hub.cloud = "172.21.0.1" // what the link really needs
			l.api.route(t, "fine", spec("172.20.0.0/16", "10.0.1.1"))
			l.reported("fine", v1alpha1.RouteApplied, 1)
			for i := range more {
				l.api.route(t, fmt.Sprint("other", i), spec(fmt.Sprintf("172.28.%d.0/24", i), "10.0.1.1"))
			}
			l.api.route(t, "evil", spec("172.21.0.0/24", "10.0.1.99")) // nobody is there
			e := l.reported("evil", v1alpha1.RouteRolledBack, 1)
			if !strings.Contains(e.Message, "the cloud does not answer any more") {
				t.Errorf("message: %s", e.Message)
			}
			for i := range more {
				l.reported(fmt.Sprint("other", i), v1alpha1.RouteApplied, 1)
			}
			l.reach("172.21.0.1")
			for _, r := range l.routes() {
				if strings.HasPrefix(r, "172.21") {
					t.Errorf("still there: %s", r)
				}
			}
			// Mended by the administrator, it is tried again.
			l.api.route(t, "evil", spec("172.21.0.0/24", "10.0.1.1"))
			l.reported("evil", v1alpha1.RouteApplied, 2)
			l.reach("172.21.0.1")
		})
	}
}

func TestRoutes_21_TwoThousandRoutesAndAFlood(t *testing.T) {
	l := newLab(t)
	const n = 2000
	subnet := func(i int) string { return fmt.Sprintf("172.24.%d.%d/32", i>>8, i&255) }
	for i := range n {
		l.api.route(t, fmt.Sprint("r", i), spec(subnet(i), "10.0.1.1"))
	}
	start := time.Now()
	l.start(false)
	complete := func() error {
		if got := len(l.routes()); got != n {
			return fmt.Errorf("%d routes of %d", got, n)
		}
		return nil
	}
	l.until("all routes", complete)
	t.Logf("%d routes after %v", n, time.Since(start))
	// A flood of foreign routes, more than any buffer holds, while a hundred of ours are removed.
	for i := range 5000 {
		if i%50 == 0 {
			l.delRoute(subnet(i / 5))
		}
		l.node.Route(t, fmt.Sprintf("172.25.%d.%d/32", i>>8, i&255), "10.0.0.1")
	}
	l.until("all routes again", complete)
	l.until("all to be reported fine", func() error {
		s := l.agent.Summary()
		if s.Applied != n {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

func TestDryRun(t *testing.T) {
	l := newLab(t)
	l.node.Route(t, "172.21.0.0/16", "10.0.0.1")
	l.start(true)
	for name, s := range map[string]v1alpha1.StaticRouteSpec{"good": spec("172.20.0.0/16", "10.0.1.1"), "far": spec("172.22.0.0/16", "10.7.7.7"), "taken": spec("172.21.0.0/16", "10.0.1.1")} {
		s.DryRun = true
		l.api.route(t, name, s)
	}
	l.reported("good", v1alpha1.RouteDryRun, 1)
	l.reported("far", v1alpha1.RouteGatewayUnreachable, 1)
	l.reported("taken", v1alpha1.RouteConflict, 1)
	l.have()
	l.api.route(t, "good", spec("172.20.0.0/16", "10.0.1.1"))
	l.reported("good", v1alpha1.RouteApplied, 2)
	s := spec("172.20.0.0/16", "10.0.1.1")
	s.DryRun = true
	l.api.route(t, "good", s)
	l.reported("good", v1alpha1.RouteDryRun, 3)
	l.have()
}
