package route

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
	"github.com/skerry-io/skerry/tests/golden"
)

// planCase is a node with eth0 10.0.0.2/24 and eth1 10.0.1.2/24, whose gateway is 10.0.0.1.
type planCase struct {
	name    string
	routes  []v1alpha1.StaticRouteSpec // the first is the oldest
	kernel  []netroute.Found           // protocol 0 is ours
	down    string                     // this interface is down
	gone    string                     // this interface has lost its addresses
	held    bool
	before  []netroute.Found // the kernel's routes at the last reading; nil: this is the first
	edit    func(*v1alpha1.StaticRouteSpec)
	repairs int // made just now
}

func kernelRoute(protocol uint8, subnet string, metric uint32, hops ...string) netroute.Found {
	f := netroute.Found{Protocol: protocol, Route: netroute.Route{Key: netroute.NewKey(0, netip.MustParsePrefix(subnet), metric), Type: netroute.Unicast}}
	for _, h := range hops {
		gateway, link, _ := strings.Cut(h, "@")
		f.Hops = append(f.Hops, netroute.Hop{Gateway: netip.MustParseAddr(gateway), Interface: link, Weight: 1})
	}
	return f
}

// String is the change as commands of ip-route(8).
func (c change) String() string {
	if c.remove {
		return "ip route del " + shortText(c.route)
	}
	verb := "add "
	if c.before != nil {
		verb = "replace "
	}
	lines := []string{"ip route " + verb + routeText(c.route)}
	for i := range c.foreign {
		if &c.foreign[i] != c.before {
			lines = append(lines, "ip route del "+shortText(c.foreign[i].Route))
		}
	}
	return strings.Join(lines, "\n")
}

// shortText returns the arguments of a delete command for a route.
func shortText(r netroute.Route) string {
	r.Hops, r.Source, r.MTU = nil, netip.Addr{}, 0
	return routeText(r)
}

func (c *planCase) facts() facts {
	f := facts{
		guards: append(standard(), Guard{Prefix: netip.MustParsePrefix("198.51.100.10/32"), Why: "the address of cloudcore"}),
		own:    map[netip.Addr]string{}, links: map[string]netroute.Link{}, versions: map[string]uint64{},
		detected: map[netip.Addr]netroute.Hop{netip.MustParseAddr(defaultProbe4): {Gateway: netip.MustParseAddr("10.0.0.1"), Interface: "eth0", Weight: 1}},
	}
	for i, name := range []string{"eth0", "eth1"} {
		l := netroute.Link{Index: i + 1, Name: name, Up: name != c.down}
		if name != c.gone {
			l.Addresses = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.0.%d.2/24", i))}
			f.own[l.Addresses[0].Addr()] = name
		}
		f.links[name] = l
	}
	return f
}

func adopt(k *keys, d decision) {
	for key, s := range d.next {
		*k.all[key] = s
	}
}

// run plans the case and writes the commands, followed by the keys' errors.
func (c *planCase) run() string {
	k := newKeys()
	in := input{now: time.Unix(1_000_000, 0), pause: time.Second, drifted: func(*claim) bool { return false },
		proven: func(*claim, string) bool { return false }, held: func(*claim) *rejection {
			if c.held {
				return reject(v1alpha1.RouteRolledBack, "it cut this node off")
			}
			return nil
		}}
	set := func(found []netroute.Found) {
		have := map[netroute.Key]*keyState{}
		for _, f := range found {
			s := have[f.Key]
			if s == nil {
				s = &keyState{}
				have[f.Key] = s
			}
			if f.Protocol == 0 {
				s.ours = &f
			} else {
				s.foreign = append(s.foreign, f)
			}
		}
		k.update(have)
	}
	place := func(generation int64, edit func(*v1alpha1.StaticRouteSpec)) {
		for i, s := range c.routes {
			if edit != nil {
				edit(&s)
			}
			o := &v1alpha1.StaticRoute{ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprint("r", i), UID: types.UID(fmt.Sprint(i)), Generation: generation, CreationTimestamp: metav1.Unix(int64(i), 0),
			}, Spec: s}
			k.place(o.Name, read(o))
		}
	}
	place(1, nil)
	if c.before != nil {
		set(c.before)
		well := planCase{}
		f := well.facts()
		in.facts = &f
		adopt(&k, plan(in, k.touchedStates()))
		for range c.repairs {
			for _, s := range k.all {
				s.drift.repaired(in.now, in.pause)
			}
		}
	}
	if c.edit != nil {
		place(2, c.edit)
	}
	set(c.kernel)
	f := c.facts()
	in.facts = &f
	for key := range k.all {
		k.touch(key)
	}
	d := plan(in, k.touchedStates())
	adopt(&k, d)
	var text strings.Builder
	for _, one := range slices.Concat(d.sets, d.removals) {
		fmt.Fprintln(&text, one)
	}
	var keys []netroute.Key
	for key := range k.all {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, compareKeys)
	for _, key := range keys {
		if bad := k.all[key].bad; bad != nil {
			fmt.Fprintf(&text, "%s: %s: %s\n", key, bad.reason, bad.message)
		}
	}
	return text.String()
}

func hops(all ...string) (out []v1alpha1.NextHop) {
	for _, h := range all {
		gateway, link, _ := strings.Cut(h, "@")
		out = append(out, v1alpha1.NextHop{Gateway: gateway, Interface: link})
	}
	return out
}

// The plans as commands of ip-route(8). UPDATE=1 writes the file.
func TestPlan(t *testing.T) {
	office := v1alpha1.StaticRouteSpec{Subnet: "172.20.0.0/16", Gateway: "10.0.1.1"}
	with := func(change func(*v1alpha1.StaticRouteSpec)) []v1alpha1.StaticRouteSpec {
		s := office
		change(&s)
		return []v1alpha1.StaticRouteSpec{s}
	}
	one := []v1alpha1.StaticRouteSpec{office}
	two := []v1alpha1.StaticRouteSpec{{Subnet: "172.20.0.0/16", NextHops: hops("10.0.0.1@", "10.0.1.1@")}}
	set := []netroute.Found{kernelRoute(0, "172.20.0.0/16", 0, "10.0.1.1@eth1")}
	both := []netroute.Found{kernelRoute(0, "172.20.0.0/16", 0, "10.0.0.1@eth0", "10.0.1.1@eth1")}
	none := []netroute.Found{}
	var text strings.Builder
	for _, c := range []planCase{
		{name: "a new route", routes: one},
		{name: "nothing to do", routes: one, kernel: set, before: set},
		{name: "everything a route can have", routes: with(func(s *v1alpha1.StaticRouteSpec) {
			s.Gateway, s.NextHops = "", []v1alpha1.NextHop{{Gateway: "10.0.1.9", Interface: "eth1", OnLink: true}}
			s.Table, s.Metric, s.MTU, s.PreferredSource = 30, 5, 1400, "10.0.1.2"
		})},
		{name: "no gateway: the detected one", routes: with(func(s *v1alpha1.StaticRouteSpec) { s.Gateway = "" })},
		{name: "a blackhole", routes: with(func(s *v1alpha1.StaticRouteSpec) { s.Gateway, s.Type = "", v1alpha1.RouteBlackhole })},
		{name: "another gateway", routes: one, before: set, kernel: set, edit: func(s *v1alpha1.StaticRouteSpec) { s.Gateway = "10.0.0.1" }},
		{name: "another metric: the new one first", routes: one, before: set, kernel: set, edit: func(s *v1alpha1.StaticRouteSpec) { s.Metric = 7 }},
		{name: "ours, and no StaticRoute wants it", kernel: set},
		{name: "another's, and no StaticRoute wants it", kernel: []netroute.Found{kernelRoute(3, "172.20.0.0/16", 0, "10.0.0.1@eth0")}},
		{name: "another's is in the way", routes: one, kernel: []netroute.Found{kernelRoute(3, "172.20.0.0/16", 0, "10.0.0.1@eth0")}},
		{name: "another's is adopted", routes: with(func(s *v1alpha1.StaticRouteSpec) { s.OnConflict = v1alpha1.ConflictAdopt }),
			kernel: []netroute.Found{kernelRoute(3, "172.20.0.0/16", 0, "10.0.0.1@eth0")}},
		{name: "two StaticRoutes: the older", routes: []v1alpha1.StaticRouteSpec{office, {Subnet: "172.20.0.0/16", Gateway: "10.0.0.1"}}},
		{name: "protected", routes: with(func(s *v1alpha1.StaticRouteSpec) { s.Subnet = "198.51.100.0/24" })},
		{name: "protected now, and set before", routes: with(func(s *v1alpha1.StaticRouteSpec) { s.Subnet = "198.51.100.0/24" }),
			kernel: []netroute.Found{kernelRoute(0, "198.51.100.0/24", 0, "10.0.1.1@eth1")}},
		{name: "removed by another process", routes: one, before: set, kernel: none},
		{name: "removed by another process, to be reported", routes: with(func(s *v1alpha1.StaticRouteSpec) { s.DriftPolicy = v1alpha1.DriftReport }), before: set, kernel: none},
		{name: "removed again before the next repair is due", routes: one, before: set, kernel: none, repairs: 1},
		{name: "put back for the fifth time", routes: one, before: set, kernel: set, repairs: 5},
		{name: "its interface is down and took it along", routes: []v1alpha1.StaticRouteSpec{{Subnet: "172.20.0.0/16", NextHops: hops("10.0.1.1@eth1")}}, before: set, kernel: none, down: "eth1"},
		{name: "its gateway is on no network any more", routes: one, before: set, kernel: set, gone: "eth1"},
		{name: "taken back because it cut the node off", routes: one, before: set, kernel: set, held: true},
		{name: "two hops", routes: two},
		{name: "two hops, one interface is down", routes: two, before: both, kernel: both, down: "eth1"},
		{name: "two hops, one interface is gone with the route", routes: two, before: both, kernel: none, gone: "eth1"},
		{name: "two hops, an edit while one interface is down", routes: two, before: both, kernel: both, down: "eth1",
			edit: func(s *v1alpha1.StaticRouteSpec) { s.MTU = 1400 }},
		{name: "two hops, the interface is up again", routes: two, kernel: []netroute.Found{kernelRoute(0, "172.20.0.0/16", 0, "10.0.0.1@eth0")}},
	} {
		fmt.Fprintf(&text, "# %s\n%s\n", c.name, c.run())
	}
	golden.Check(t, "testdata/plan.golden", text.String())
}
