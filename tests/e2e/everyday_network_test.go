package e2e_test

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
)

// uplink removes the default route of a device's uplink, or all its routes and addresses, and
// returns a function that restores them.
func (s *system) uplink(node string, all bool) (restore func()) {
	s.T.Helper()
	h, err := s.Trial.Host(node)
	s.Check(err)
	links, err := h.Netlink()
	s.Check(err)
	wan, err := links.LinkByName("wan0")
	s.Check(err)
	routes, err := links.RouteList(wan, nl.FAMILY_ALL)
	s.Check(err)
	addresses, err := links.AddrList(wan, nl.FAMILY_ALL)
	s.Check(err)
	routes = slices.DeleteFunc(routes, func(r netlink.Route) bool { return r.Protocol == 2 }) // the kernel's own (RTPROT_KERNEL)
	// Routes to a gateway come after those to its network.
	slices.SortStableFunc(routes, func(a, b netlink.Route) int { return len(a.Gw) - len(b.Gw) })
	for _, r := range routes {
		if all || r.Gw != nil {
			s.Check(links.RouteDel(&r))
		}
	}
	if all {
		for _, a := range addresses {
			s.Check(links.AddrDel(wan, &a))
		}
	}
	done := false
	restore = func() {
		if done {
			return
		}
		done = true
		defer links.Close()
		if all {
			for _, a := range addresses {
				s.Check(links.AddrReplace(wan, &a))
			}
		}
		for _, r := range routes {
			s.Check(links.RouteReplace(&r))
		}
	}
	s.T.Cleanup(restore)
	return restore
}

// TestEveryday_13: a device that has no default route, or no network but its LAN, starts its pods,
// which keep running; when the network comes it finds its cloud by itself.
func TestEveryday_13_NetworkComesLate(t *testing.T) {
	s := use(t)
	ns := s.Namespace()
	pod := s.pod(ns, "bare", "edge1")
	s.waitLinked("edge1")
	running := s.Containers("edge1")
	for name, all := range map[string]bool{"no default route": false, "LAN only": true} {
		restore := s.uplink("edge1", all)
		s.Kill("edge1", "edgecore")
		s.Start("edge1", "edgecore")
		s.waitKubelet("edge1")
		if diff := cmp.Diff(running, s.Containers("edge1"), sorted()); diff != "" {
			t.Errorf("%s: the containers (-before +after):\n%s", name, diff)
		}
		s.post(pod, "/crash")
		s.WaitFor("a crashed container to run again, "+name, func(context.Context) error { return s.replaced("edge1", running) })
		s.waitRunningHere("edge1", *pod)
		running = s.Containers("edge1")
		s.waitUnlinked("edge1")
		restore()
		s.waitLinked("edge1")
		s.WaitReady("edge1", true)
		if diff := cmp.Diff(running, s.Containers("edge1"), sorted()); diff != "" {
			t.Errorf("with the network: the containers (-before +after):\n%s", diff)
		}
	}
}
