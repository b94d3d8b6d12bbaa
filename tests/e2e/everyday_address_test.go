package e2e_test

import (
	"context"
	"fmt"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// readdress gives a device's uplink another address of its network, as a DHCP server may, and
// returns a function that restores the one before.
func (s *system) readdress(node string, last byte) (address string, restore func()) {
	s.T.Helper()
	h, err := s.Trial.Host(node)
	s.Check(err)
	links, err := h.Netlink()
	s.Check(err)
	defer links.Close()
	wan, err := links.LinkByName("wan0")
	s.Check(err)
	routes, err := links.RouteList(wan, netlink.FAMILY_V4)
	s.Check(err)
	addresses, err := links.AddrList(wan, netlink.FAMILY_V4)
	s.Check(err)
	if len(addresses) != 1 {
		s.T.Fatalf("wan0 of %s has %v", node, addresses)
	}
	was := addresses[0].IP.To4()
	now := net.IPv4(was[0], was[1], was[2], last).To4()
	s.Check(links.AddrDel(wan, &addresses[0])) // and its routes
	s.Check(links.AddrAdd(wan, &netlink.Addr{IPNet: &net.IPNet{IP: now, Mask: addresses[0].Mask}}))
	for _, r := range routes {
		if r.Gw != nil {
			r.Src, r.Flags = nil, 0 // of before, and of a link without a carrier
			s.Check(links.RouteReplace(&r))
		}
	}
	return now.String(), func() { s.readdress(node, was[3]) }
}

// TestEveryday_19: the device's address is another one when it starts. Its pods keep running
// without a link; with one the cluster has the new address, and reaches the pods' logs.
func TestEveryday_19_AnotherAddressAtTheStart(t *testing.T) {
	s := use(t)
	ns := s.Namespace()
	pod := s.pod(ns, "bare", "edge1")
	running := s.Containers("edge1")
	s.Cut("edge1")
	s.Kill("edge1", "edgecore")
	address, restore := s.readdress("edge1", 77)
	t.Cleanup(func() {
		restore()
		if err := s.Trial.Kill(context.WithoutCancel(t.Context()), "edge1", "edgecore"); err != nil {
			t.Error(err)
		}
		if err := s.Trial.Start(context.WithoutCancel(t.Context()), "edge1", "edgecore"); err != nil {
			t.Error(err)
		}
	})
	s.Start("edge1", "edgecore")
	s.waitKubelet("edge1")
	if diff := cmp.Diff(running, s.Containers("edge1"), sorted()); diff != "" {
		t.Errorf("the containers (-before +after):\n%s", diff)
	}
	s.waitRunningHere("edge1", *pod)
	s.Heal("edge1")
	s.waitLinked("edge1")
	s.WaitReady("edge1", true)
	s.WaitFor("the cluster to have the new address", func(ctx context.Context) error {
		node, err := s.Client.CoreV1().Nodes().Get(ctx, "edge1", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, a := range node.Status.Addresses {
			if a.Type == corev1.NodeInternalIP && a.Address == address {
				return nil
			}
		}
		return fmt.Errorf("it has %v, want %s", node.Status.Addresses, address)
	})
	s.WaitFor("the pod's log by way of the cluster", func(ctx context.Context) error {
		_, err := s.Client.CoreV1().Pods(ns).GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
		return err
	})
}
