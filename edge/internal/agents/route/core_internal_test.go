package route

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
)

func staticRoute(s v1alpha1.StaticRouteSpec) *v1alpha1.StaticRoute {
	return &v1alpha1.StaticRoute{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: s}
}

func TestRead(t *testing.T) {
	addr := netip.MustParseAddr
	hop := func(gateway string) netroute.Hop { return netroute.Hop{Gateway: addr(gateway), Weight: 1} }
	for name, c := range map[string]struct {
		spec    v1alpha1.StaticRouteSpec
		want    netroute.Route
		probe   string
		invalid string
	}{
		"a network": {v1alpha1.StaticRouteSpec{Subnet: "172.20.0.0/16", Gateway: "10.0.0.1"},
			netroute.Route{Key: netroute.Key{Table: 254, Prefix: netip.MustParsePrefix("172.20.0.0/16")}, Type: netroute.Unicast, Hops: []netroute.Hop{hop("10.0.0.1")}}, "", ""},
		"a host": {v1alpha1.StaticRouteSpec{Subnet: "172.20.0.1", Gateway: "10.0.0.1", Table: 30, Metric: 7},
			netroute.Route{Key: netroute.Key{Table: 30, Prefix: netip.MustParsePrefix("172.20.0.1/32"), Metric: 7}, Type: netroute.Unicast, Hops: []netroute.Hop{hop("10.0.0.1")}}, "", ""},
		"IPv6 without a metric": {v1alpha1.StaticRouteSpec{Subnet: "2001:db8::/64", Type: v1alpha1.RouteBlackhole},
			netroute.Route{Key: netroute.Key{Table: 254, Prefix: netip.MustParsePrefix("2001:db8::/64"), Metric: 1024}, Type: netroute.Blackhole}, "", ""},
		"no gateway": {v1alpha1.StaticRouteSpec{Subnet: "172.20.0.0/16"},
			netroute.Route{Key: netroute.Key{Table: 254, Prefix: netip.MustParsePrefix("172.20.0.0/16")}, Type: netroute.Unicast}, "10.0.0.1", ""},
		"no IPv6 gateway": {v1alpha1.StaticRouteSpec{Subnet: "2001:db8::1"},
			netroute.Route{Key: netroute.Key{Table: 254, Prefix: netip.MustParsePrefix("2001:db8::1/128"), Metric: 1024}, Type: netroute.Unicast}, "fd00::1", ""},
		"a bad subnet":         {v1alpha1.StaticRouteSpec{Subnet: "999.1.1.1"}, netroute.Route{}, "", "neither a network nor an address"},
		"bits behind the mask": {v1alpha1.StaticRouteSpec{Subnet: "10.0.0.1/24"}, netroute.Route{}, "", "bits set behind its mask"},
		"a mapped address":     {v1alpha1.StaticRouteSpec{Subnet: "::ffff:10.0.0.0/104"}, netroute.Route{}, "", "is no network"},
		"a zone":               {v1alpha1.StaticRouteSpec{Subnet: "fe80::1%eth0"}, netroute.Route{}, "", "neither a network nor an address"},
		"two families":         {v1alpha1.StaticRouteSpec{Subnet: "10.1.0.0/16", Gateway: "fe80::1"}, netroute.Route{}, "", "not of the family"},
		"a bad gateway":        {v1alpha1.StaticRouteSpec{Subnet: "10.1.0.0/16", Gateway: "router"}, netroute.Route{}, "", "no IP address"},
		"a type of the future": {v1alpha1.StaticRouteSpec{Subnet: "10.1.0.0/16", Type: "Throw"}, netroute.Route{}, "", "unknown to this version"},
		"the local table":      {v1alpha1.StaticRouteSpec{Subnet: "10.1.0.0/16", Table: 255}, netroute.Route{}, "", "not a table for static routes"},
		"a bad selector": {v1alpha1.StaticRouteSpec{Subnet: "10.1.0.0/16", NodeSelector: &v1alpha1.NodeSelector{
			MatchExpressions: []v1alpha1.NodeRequirement{{Key: "a", Operator: "Near"}}}}, netroute.Route{}, "", "nodeSelector"},
	} {
		t.Run(name, func(t *testing.T) {
			got := read(staticRoute(c.spec))
			if c.invalid != "" {
				if !strings.Contains(got.invalid, c.invalid) {
					t.Errorf("invalid: %q, want %q in it", got.invalid, c.invalid)
				}
				return
			}
			if got.invalid != "" {
				t.Fatal(got.invalid)
			}
			if diff := cmp.Diff(c.want, got.route, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if probe := got.probe; c.probe != "" && probe.String() != c.probe || c.probe == "" && probe.IsValid() {
				t.Errorf("probe %s, want %q", probe, c.probe)
			}
		})
	}
}

func TestSelects(t *testing.T) {
	o := staticRoute(v1alpha1.StaticRouteSpec{Subnet: "10.1.0.0/16", NodePool: "p", NodeSelector: &v1alpha1.NodeSelector{MatchLabels: map[string]string{"a": "b"}}})
	for note, unresolved := range map[string]bool{"": true, "{": true, `{"pool":"q"}`: true, `{"pool":"p"}`: false} {
		o.Annotations = map[string]string{v1alpha1.NodePoolAnnotation: note}
		if got := read(o).unresolved; got != unresolved {
			t.Errorf("annotation %s: unresolved %v, want %v", note, got, unresolved)
		}
	}
	byPool := o.DeepCopy()
	byPool.Annotations = map[string]string{v1alpha1.NodePoolAnnotation: `{"pool":"p","nodeSelector":{"matchLabels":{"line":"1"}}}`}
	for text, want := range map[string]bool{"a=b,line=1": true, "a=b,line=2": false, "a=b,skerry.io/node-pool=p": false, "line=1": false} {
		l, err := labels.ConvertSelectorToLabelsMap(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := read(byPool).selects(l); got != want {
			t.Errorf("a pool with a nodeSelector, %s: %v, want %v", text, got, want)
		}
	}
	o.Annotations = map[string]string{v1alpha1.NodePoolAnnotation: `{"pool":"p"}`}
	c := read(o)
	for text, want := range map[string]bool{"a=b,skerry.io/node-pool=p": true, "a=b": false, "a=c,skerry.io/node-pool=p": false, "skerry.io/node-pool=p": false} {
		l, err := labels.ConvertSelectorToLabelsMap(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.selects(l); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
	if !read(staticRoute(v1alpha1.StaticRouteSpec{Subnet: "10.1.0.0/16"})).selects(nil) {
		t.Error("no selector selects no node")
	}
}

func TestGuard(t *testing.T) {
	g := append(standard(), Guard{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Why: "why"}, Guard{Prefix: netip.MustParsePrefix("2001:db8::7/128"), Why: "why"})
	for subnet, want := range map[string]bool{
		"10.1.2.0/24": true, "10.0.0.0/8": true, "8.0.0.0/5": true, "11.0.0.0/8": false, "0.0.0.0/0": true, "::/0": true, "2001:db8::/32": true,
		"2001:db8::8/128": false, "172.20.0.0/16": false, "127.0.0.1/32": true, "fe80::/64": true, "239.1.1.1/32": true,
	} {
		if got := g.check(netip.MustParsePrefix(subnet)) != nil; got != want {
			t.Errorf("%s: protected %v, want %v", subnet, got, want)
		}
	}
}

func TestDrift(t *testing.T) {
	var d drift
	now := time.Unix(1_000_000, 0)
	var pauses []string
	for range 12 {
		if due := d.due(); now.Before(due) {
			now = due
		}
		d.repaired(now, time.Second)
		pauses = append(pauses, fmt.Sprint(d.pause))
	}
	want := "1s 2s 4s 8s 16s 32s 1m4s 2m8s 4m16s 5m0s 5m0s 5m0s"
	if got := strings.Join(pauses, " "); got != want {
		t.Errorf("pauses %s\nwant   %s", got, want)
	}
	if !d.degraded() {
		t.Error("not degraded")
	}
	d.settle(now.Add(quiet - 1))
	if !d.degraded() {
		t.Error("forgotten too early")
	}
	d.settle(now.Add(quiet))
	if d.degraded() || !d.due().IsZero() {
		t.Error("never forgotten")
	}
}

func TestWinner(t *testing.T) {
	old, young := read(staticRoute(v1alpha1.StaticRouteSpec{})), read(staticRoute(v1alpha1.StaticRouteSpec{}))
	old.created, young.created = time.Unix(1, 0), time.Unix(2, 0)
	old.name, young.name = "z", "a"
	if old.before(young) >= 0 {
		t.Error("the older does not win")
	}
	old.created = young.created
	if young.before(old) >= 0 {
		t.Error("of two of one age the first name does not win")
	}
}

// FuzzRead: whatever gets past an API server's rules, or is written for another version, never ends
// the agent.
func FuzzRead(f *testing.F) {
	f.Add("172.20.0.0/16", "10.0.0.1", "eth0", "10.0.0.1", int64(254), int64(0))
	f.Add("::ffff:1.2.3.4", "fe80::1%x", "", "::", int64(-1), int64(1)<<40)
	for _, word := range []string{"a\nb", "$(reboot)", "../../x", "\x00", "'\"`", strings.Repeat("a", 64<<10), "10.0.0.0/8 dev eth0"} {
		f.Add(word, word, word, word, int64(255), int64(1)<<62)
	}
	f.Fuzz(func(t *testing.T, subnet, gateway, link, probe string, table, metric int64) {
		c := read(staticRoute(v1alpha1.StaticRouteSpec{Subnet: subnet, NextHops: []v1alpha1.NextHop{{Gateway: gateway, Interface: link}}, Table: table, Metric: metric,
			GatewayDetection: &v1alpha1.GatewayDetection{ProbeIP: probe}}))
		if c.invalid == "" && (!c.route.Prefix.IsValid() || c.route.Table == 255 || c.route.Prefix != c.route.Prefix.Masked()) {
			t.Errorf("read as %v", c.route)
		}
	})
}
