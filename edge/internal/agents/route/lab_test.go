package route_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/agents/route"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
	"github.com/skerry-io/skerry/tests/cluster/poll"
	"github.com/skerry-io/skerry/tests/netns/wire"
)

const (
	nodeName = "edge1"
	protocol = 158
)

// A system is a node with two networks, a router on each, and a server behind both. The cloud is
// behind the first router:
//
//	                  eth0 10.0.0.2/24 - [a] - 10.9.0.2 eth0
//	[node]  <                                                  > [server] 172.20.0.1, 172.21.0.1, 2001:db8:20::1, the cloud 198.51.100.10
//	                  eth1 10.0.1.2/24 - [b] - 10.9.1.2 eth1
//
// The objects stay in the API regardless of the link, like in an edge's store.
type system struct {
	t                  testing.TB
	node, a, b, server *wire.Host
	kernel             *netroute.Driver
	api                *api
	store              *store.Store
	boot               string
	tune               func(*route.Config)

	mu       sync.Mutex
	reports  map[string][]v1alpha1.StaticRouteNode // a removal has an empty name
	notified chan struct{}                         // one slot: there was a report
	stop     func()
	agent    *route.Agent
	events   *record.FakeRecorder
	hub      *hub
}

func newSystem(t testing.TB) *system {
	t.Helper()
	l := &system{t: t, node: wire.NewHost(t), a: wire.NewHost(t), b: wire.NewHost(t), server: wire.NewHost(t), api: newAPI(t), boot: "first boot",
		reports: map[string][]v1alpha1.StaticRouteNode{}, notified: make(chan struct{}, 1)}
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

// recorder is a FakeRecorder that can be closed.
type recorder struct{ *record.FakeRecorder }

func (recorder) Close(context.Context) error { return nil }

// start starts an agent as edgecore does, and ends it with the test.
func (l *system) start(linked bool) {
	l.t.Helper()
	l.events = record.NewFakeRecorder(1000)
	l.hub = &hub{lab: l, linked: linked, relink: make(chan struct{}, 1)}
	c := route.Config{
		NodeName: nodeName, BootID: l.boot, Open: func(context.Context) (route.Kernel, func(), error) { return l.kernel, func() {}, nil },
		Events: func(context.Context) (agent.Recorder, error) { return recorder{l.events}, nil },
		State:  agent.NewMemory(l.store, string(route.Name)), Reporter: l, API: l.api.config(), Hub: "edgehub",
		Protected:    []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:bad::/48")},
		ProbeTimeout: 2 * time.Second, FullCheck: 5 * time.Second,
	}
	if l.tune != nil {
		l.tune(&c)
	}
	l.agent = route.New(c)
	runner, err := beehive.NewRunner(beehive.Config{}, []beehive.Entry{
		{Module: l.agent, Groups: []message.Group{linkstate.Agents}, Restart: beehive.OnFailure(beehive.Backoff{Min: time.Millisecond})},
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

// hub is the module with the link: a request takes the path of an echo to the cloud, and is
// answered.
type hub struct {
	lab    *system
	mu     sync.Mutex
	linked bool
	relink chan struct{}
	cloud  string // "" for 198.51.100.10
	// fragile: a question that is not answered ends the link, and it stays dead until it is dialled
	// again.
	fragile, dead atomic.Bool
	asked         atomic.Int32
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
			_ = port.SendToGroup(ctx, linkstate.Agents, linkstate.Current.New(message.Resource{}, linkstate.State{Up: linked, Link: linkstate.Link{Epoch: epoch, Remote: "198.51.100.10:10000"}}))
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
			patience, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			defer cancel()
			if h.fragile.Load() {
				ctx = patience
			}
			h.asked.Add(1)
			if h.dead.Load() {
				_ = port.Reply(ctx, m, linkstate.ErrNoLink)
				return
			}
			if err := h.lab.kernel.Ping(ctx, netip.MustParseAddr(cloud), ""); err != nil {
				h.dead.Store(h.fragile.Load())
				ctx = context.WithoutCancel(ctx)
				_ = port.Reply(ctx, m, linkstate.ErrNoLink)
				return
			}
			_ = port.Reply(ctx, m, &topicpb.APIResponse{Code: 200})
		})
	}
}

// Report implements route.Reporter.
func (l *system) Report(_ context.Context, ref object.Ref, uid types.UID, body []byte) error {
	var e v1alpha1.StaticRouteNode
	if string(body) != "null" {
		if err := json.Unmarshal(body, &e); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.notified <- struct{}{}:
	default:
	}
	l.reports[ref.Name] = append(l.reports[ref.Name], e)
	return nil
}

// last returns the last report.
func (l *system) last(name string) v1alpha1.StaticRouteNode {
	l.mu.Lock()
	defer l.mu.Unlock()
	if all := l.reports[name]; len(all) > 0 {
		return all[len(all)-1]
	}
	return v1alpha1.StaticRouteNode{Reason: "nothing reported"}
}

func (l *system) all(name string) []v1alpha1.StaticRouteNode {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]v1alpha1.StaticRouteNode{}, l.reports[name]...)
}

// until waits for a condition.
func (l *system) until(what string, is func() error) {
	l.t.Helper()
	poll.Eventually(l.t, what, func(context.Context) error { return is() })
}

// reported waits until that reason is the last one reported for a generation.
func (l *system) reported(name, reason string, generation int64) v1alpha1.StaticRouteNode {
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
func (l *system) routes() []string {
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

func (l *system) have(want ...string) {
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

func (l *system) reach(to string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 5*time.Second)
	defer cancel()
	if err := l.kernel.Ping(ctx, netip.MustParseAddr(to), ""); err != nil {
		l.t.Errorf("%s: %v", to, err)
	}
}

func (l *system) unreached(to string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Second)
	defer cancel()
	if err := l.kernel.Ping(ctx, netip.MustParseAddr(to), ""); err == nil {
		l.t.Errorf("%s answers", to)
	}
}

// swallow makes the router of the default route drop packets to a network.
func (l *system) swallow(network string) {
	l.t.Helper()
	drop := &netlink.Route{Dst: wire.IPNet(netip.MustParsePrefix(network)), Type: unix.RTN_BLACKHOLE}
	for range 2 { // IPv6 may treat it as another hop of the existing route
		_ = l.a.Netlink().RouteDel(&netlink.Route{Dst: drop.Dst})
	}
	if err := l.a.Netlink().RouteReplace(drop); err != nil {
		l.t.Fatal(err)
	}
}

func (l *system) delRoute(prefix string) {
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
