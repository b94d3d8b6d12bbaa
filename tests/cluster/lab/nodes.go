package lab

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/coreos/go-iptables/iptables"
	"github.com/vishvananda/netlink"

	"github.com/skerry-io/skerry/tests/cluster/host"
)

// chainLB is the chain of the stand-in for a load balancer (package loadbalancer).
const chainLB = "TRIAL-LB"

// LoadBalancer is the address by which edges reach the cloud where it runs on the
// cluster's own nodes.
func LoadBalancer() netip.Addr { return netip.AddrFrom4([4]byte{198, 51, 100, 100}) }

// services is the range of kubeplane's Services. kube-proxy translates packets to it, but only a
// packet with a route is sent at all.
func services() netip.Prefix { return netip.MustParsePrefix("10.96.0.0/16") }

// OfferLoadBalancer gives the router the load balancer's address. A port that leads
// nowhere is refused.
func OfferLoadBalancer(router host.Host) error {
	if err := address(router, cloudIface, netip.PrefixFrom(LoadBalancer(), 32)); err != nil {
		return err
	}
	return router.Do(func() error {
		t, err := iptables.New()
		if err != nil {
			return fmt.Errorf("looking for iptables: %w", err)
		}
		var errs []error
		if ok, err := t.ChainExists("nat", chainLB); err != nil || !ok {
			errs = append(errs, err, t.NewChain("nat", chainLB))
		}
		return errors.Join(append(errs, t.AppendUnique("nat", "PREROUTING", "-i", "up+", "-j", chainLB))...)
	})
}

// ConnectNode makes node n, which has an uplink already, a node of the cloud's own network: the
// router leads to its pods, the cloud and the other nodes reach it and them, it reaches the port of
// kube-apiserver, and the load balancer leads to it.
func ConnectNode(router, cloud host.Host, n int, others []int, apiPort string) error {
	if err := leadTo(router, Uplink(n).Addr(), Pods(n)); err != nil {
		return err
	}
	if err := leadTo(cloud, cloudGateway().Addr(), Pods(n), Uplink(n).Masked(), services()); err != nil {
		return err
	}
	return router.Do(func() error {
		t, err := iptables.New()
		if err != nil {
			return fmt.Errorf("looking for iptables: %w", err)
		}
		errs := []error{
			t.AppendUnique("filter", "FORWARD", "-i", cloudIface, "-o", upName(n), "-j", "ACCEPT"),
			t.AppendUnique("filter", "FORWARD", "-o", upName(n), "-m", "conntrack", "--ctstate", "DNAT", "-j", "ACCEPT"),
		}
		for _, m := range others {
			for _, way := range [][2]int{{n, m}, {m, n}} {
				errs = append(errs, t.AppendUnique("filter", "FORWARD", "-i", upName(way[0]), "-o", upName(way[1]), "-j", "ACCEPT"))
			}
		}
		// In front of the refusal of all else, behind the two chains of faults.
		errs = append(errs, t.InsertUnique("filter", "FORWARD", 3, "-i", upName(n), "-o", cloudIface, "-p", "tcp", "--dport", apiPort, "-j", "ACCEPT"))
		return errors.Join(errs...)
	})
}

func leadTo(h host.Host, via netip.Addr, networks ...netip.Prefix) error {
	links, err := h.Netlink()
	if err != nil {
		return err
	}
	defer links.Close()
	for _, p := range networks {
		if err := links.RouteReplace(&netlink.Route{Dst: ipNet(p), Gw: via.AsSlice()}); err != nil {
			return fmt.Errorf("setting the route to %v: %w", p, err)
		}
	}
	return nil
}
