package route_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

func TestRoutes_01_NoGatewayTakesTheDetectedOne(t *testing.T) {
	l := newSystem(t)
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

func TestRoutes_02_ExplicitGatewayIsUsed(t *testing.T) {
	l := newSystem(t)
	l.start(true)
	l.api.route(t, "office", spec("172.20.0.0/16", "10.0.1.1"))
	l.reported("office", v1alpha1.RouteApplied, 1)
	l.have("172.20.0.0/16 table 254 metric 0 via 10.0.1.1 dev eth1")
	l.reach("172.20.0.1")
	l.api.remove(t, "staticroutes", "office")
	l.have()
}

func TestRoutes_04_RouteFollowsALabelRemovedAndPutBack(t *testing.T) {
	l := newSystem(t)
	s := spec("172.20.0.0/16", "10.0.1.1")
	s.NodeSelector = &v1alpha1.NodeSelector{MatchLabels: map[string]string{"zone": "north"}}
	l.api.route(t, "office", s)
	s = spec("172.21.0.0/16", "10.0.1.1")
	s.NodePool = "warehouse"
	l.api.route(t, "pool", s, members(`{"pool":"warehouse"}`))
	l.start(true)
	l.reported("office", v1alpha1.RouteApplied, 1)
	l.have("172.20.0.0/16")
	l.api.node(t, "node 1", map[string]string{v1alpha1.NodePoolLabel: "warehouse"})
	l.reported("pool", v1alpha1.RouteApplied, 1)
	l.reported("office", "", 0) // reported as removed
	l.have("172.21.0.0/16")
	l.api.node(t, "node 1", map[string]string{"zone": "north"})
	l.reported("office", v1alpha1.RouteApplied, 1)
	l.have("172.20.0.0/16")
}

// The reports of a deleted node are lost with it: the node that returns repeats all of them.
func TestRoutes_05_AnotherNodeOfTheNameReportsAgain(t *testing.T) {
	l := newSystem(t)
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
	l := newSystem(t)
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

func TestRoutes_09_NoNodeMatchesIsEmptyAndDeletable(t *testing.T) {
	l := newSystem(t)
	s := spec("172.20.0.0/16", "10.0.1.1")
	s.NodeSelector = &v1alpha1.NodeSelector{MatchLabels: map[string]string{"zone": "nowhere"}}
	l.api.route(t, "elsewhere", s)
	l.api.route(t, "office", spec("172.21.0.0/16", "10.0.1.1"))
	l.start(true)
	l.reported("office", v1alpha1.RouteApplied, 1)
	if got := l.all("elsewhere"); len(got) != 0 {
		t.Errorf("reported of a route that is for others: %v", got)
	}
	l.have("172.21.0.0/16")
}

func TestRoutes_18_TwoObjectsOneKeyOneWinner(t *testing.T) {
	l := newSystem(t)
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

func TestDryRun(t *testing.T) {
	l := newSystem(t)
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

// members sets cloudcore's annotation on a StaticRoute with nodePool.
func members(text string) func(*v1alpha1.StaticRoute) {
	return func(o *v1alpha1.StaticRoute) { o.Annotations = map[string]string{v1alpha1.NodePoolAnnotation: text} }
}

// A node decides by the pool's own selector, without a link too. While the members of a pool are
// not written down, nodes that have the route keep it, and no other sets it.
func TestNodePool(t *testing.T) {
	l := newSystem(t)
	s := spec("172.20.0.0/16", "10.0.1.1")
	s.NodePool = "line"
	l.api.route(t, "office", s)
	l.api.route(t, "plain", spec("172.21.0.0/16", "10.0.1.1"))
	l.start(false)
	l.reported("plain", v1alpha1.RouteApplied, 1)
	l.have("172.21.0.0/16")
	l.api.route(t, "office", s, members(`{"pool":"line","nodeSelector":{"matchLabels":{"zone":"north"}}}`))
	l.reported("office", v1alpha1.RouteApplied, 2)
	l.have("172.20.0.0/16", "172.21.0.0/16")

	// It names another, still unknown pool; over a restart too.
	s.NodePool = "other"
	l.api.route(t, "office", s, members(`{"pool":"line","nodeSelector":{"matchLabels":{"zone":"north"}}}`))
	l.api.route(t, "plain", spec("172.21.0.0/17", "10.0.1.1"))
	l.reported("plain", v1alpha1.RouteApplied, 2)
	l.have("172.20.0.0/16", "172.21.0.0/17")
	l.stop()
	l.start(false)
	l.api.route(t, "plain", spec("172.21.0.0/18", "10.0.1.1"))
	l.reported("plain", v1alpha1.RouteApplied, 3)
	l.have("172.20.0.0/16", "172.21.0.0/18")
	l.api.route(t, "office", s, members(`{"pool":"other","nodeSelector":{"matchLabels":{"zone":"south"}}}`))
	l.reported("office", "", 0)
	l.have("172.21.0.0/18")
	l.api.node(t, "node 1", map[string]string{v1alpha1.EdgeLabel: "", "zone": "south"})
	l.reported("office", v1alpha1.RouteApplied, 4)
	l.have("172.20.0.0/16", "172.21.0.0/18")
}
