package lan_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// waitReason waits until a node reports this reason for its pod network, with the word in its
// message.
func (s *system) waitReason(node, reason, word string) {
	s.T.Helper()
	s.WaitFor(node+" to say "+reason, func(ctx context.Context) error {
		c, err := s.condition(ctx, node)
		if err == nil && (c.Reason != reason || !strings.Contains(c.Message, word)) {
			err = fmt.Errorf("it says %s: %s", c.Reason, c.Message)
		}
		return err
	})
}

// register has a device register as one that was never a Node: in no pool and without a range. A
// device that has its store would bring its range back (docs/dev/decisions/0098); its pods'
// configuration stays where containerd reads it.
func (s *system) register(ctx context.Context, node string) {
	s.T.Helper()
	nodes := s.Client.CoreV1().Nodes()
	h, err := s.Trial.Host(node)
	s.Check(err)
	s.Check(s.Trial.Stop(ctx, node, "edgecore"))
	s.Check(os.Remove(filepath.Join(h.Root(), "/var/lib/skerry/store.db")))
	s.Check(nodes.Delete(ctx, node, metav1.DeleteOptions{}))
	s.Check(s.Trial.Start(ctx, node, "edgecore"))
	s.WaitForIn(ctx, node+" to register", func(ctx context.Context) error {
		_, err := nodes.Get(ctx, node, metav1.GetOptions{})
		return err
	})
}

// podCIDR waits for a node's range.
func (s *system) podCIDR(node string) netip.Prefix {
	s.T.Helper()
	var r netip.Prefix
	s.WaitFor(node+" to have a range for its pods", func(ctx context.Context) error {
		n, err := s.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if offer := n.Annotations["skerry.io/pod-cidr-offer"]; n.Spec.PodCIDR != "" && offer != n.Spec.PodCIDR {
			s.T.Fatalf("%s was offered %q and took %q", node, offer, n.Spec.PodCIDR)
		}
		r, err = netip.ParsePrefix(n.Spec.PodCIDR)
		return err
	})
	return r
}

// A cluster whose controllers give no ranges: the leader offers one of the pool's podSubnets, and
// the device writes it into its Node. In a pool without podSubnets, or outside of pools, a device
// keeps a range that it alone has, for as long as no other network has it; where all are taken it
// reports that. Of two devices with one range the newer one's does not count: it reports that, the
// pool reports it, and neither loses its own pods.
func TestSite_26_NoPodCIDRIsOfferedByTheLeader(t *testing.T) {
	s := newSystem(t)
	subnets := netip.MustParsePrefix("10.244.0.0/16")
	seen := map[netip.Prefix]string{}
	ranges := map[string]netip.Prefix{}
	for _, n := range options().Nodes() {
		r := s.podCIDR(n.Name)
		if other, taken := seen[r]; taken || !subnets.Contains(r.Addr()) || r.Bits() != 24 {
			t.Errorf("%s has %s; %q has it too", n.Name, r, other)
		}
		seen[r], ranges[n.Name] = n.Name, r
		s.waitReason(n.Name, "Ready", "are in "+r.String())
	}
	// Neither cloudcore by itself nor another device could have written it.
	for _, who := range []string{"system:serviceaccount:skerry-system:cloudcore", "system:node:edge2"} {
		out, err := s.Run(t.Context(), "kubectl", "patch", "node", "edge3", "--as", who, "--as-group", "system:nodes", "--dry-run=server", "--type=merge", "-p", `{"metadata":{"labels":{"x":"y"}}}`)
		if err == nil || !strings.Contains(err.Error(), "orbidden") {
			t.Errorf("%s may write the Node of edge3: %s %v", who, out, err)
		}
	}
	address, _ := s.web()

	s.Check(ignoreNotFound(s.Client.CoreV1().Pods(namespace).Delete(t.Context(), "on-edge3", metav1.DeleteOptions{})))
	s.register(t.Context(), "edge3")
	defer func() { // as it was
		s.Mend(context.Background())
		s.register(context.Background(), "edge3")
		s.label("edge3", trial.Pool)
		s.waitReason("edge3", "Ready", "are in "+s.podCIDR("edge3").String())
		s.waitReason("edge1", "Ready", "are in "+ranges["edge1"].String())
	}()
	s.waitReason("edge3", "Ready", ranges["edge3"].String()+unknown)
	s.pool("bare", `{"network":"bare"}`)
	s.label("edge3", "bare")
	s.taken(ranges["edge3"].String())
	s.waitReason("edge3", "Ready", own[0]+unknown)
	alone := s.podIn(netip.MustParsePrefix(own[0]), "alone", "edge3")
	s.taken(own...)
	s.waitReason("edge3", "NoPodCIDR", "podSubnets")
	n, err := s.Client.CoreV1().Nodes().Get(t.Context(), "edge3", metav1.GetOptions{})
	if s.Check(err); n.Spec.PodCIDR != "" {
		t.Errorf("the Node of edge3 says %s, which no cluster has given it", n.Spec.PodCIDR)
	}
	s.Must(s.shell(t.Context(), "edge3", "ip route flush proto 77"))
	s.waitReason("edge3", "Ready", own[0]+unknown)

	// At another place the range of edge1 is free.
	s.pool("quay", `{"network":"quay","podSubnets":["`+ranges["edge1"].String()+`"]}`)
	s.label("edge3", "quay")
	if r := s.podCIDR("edge3"); r != ranges["edge1"] {
		t.Fatalf("edge3 has %s, want %s", r, ranges["edge1"])
	}
	s.waitReason("edge3", "PodsInOldRange", alone.Status.PodIP)
	s.Check(s.Client.CoreV1().Pods(namespace).Delete(t.Context(), alone.Name, metav1.DeleteOptions{}))
	s.waitReason("edge3", "Ready", "are in "+ranges["edge1"].String())
	// The device is carried here.
	s.label("edge3", trial.Pool)
	s.waitReason("edge3", "PodCIDRConflict", "edge1")
	s.WaitFor("the pool to say whose range does not count", func(ctx context.Context) error {
		out, err := s.Run(ctx, "kubectl", "get", "nodepool", trial.Pool, "-o", `jsonpath={.status.conditions[?(@.type=="PodCIDRsRefused")].message}`)
		if want := "node edge3 claims " + ranges["edge1"].String() + " for its pods: node edge1 has " + ranges["edge1"].String(); err == nil && out != want {
			err = fmt.Errorf("it says %q, want %q", out, want)
		}
		return err
	})
	s.waitReason("edge1", "Ready", "are in "+ranges["edge1"].String())
	s.served("edge1", address, "on-edge1", "on-edge2")
	s.served("edge2", address, "on-edge1", "on-edge2")
}

// podIn is a pod with an address of a range. containerd reads a configuration of the network a
// moment after it was written, so that a pod that is made just then may still have one of the range
// before, and the next has not.
func (s *system) podIn(r netip.Prefix, name, node string) corev1.Pod {
	s.T.Helper()
	for try := 0; ; try++ {
		p := s.pod(fmt.Sprint(name, "-", try), node)
		if r.Contains(netip.MustParseAddr(p.Status.PodIP)) {
			return p
		}
		if try == 3 {
			s.T.Fatalf("a pod of %s has %s, which is not in %s", node, p.Status.PodIP, r)
		}
		pods := s.Client.CoreV1().Pods(namespace)
		s.Check(pods.Delete(s.T.Context(), p.Name, metav1.DeleteOptions{}))
		s.WaitFor("pod "+p.Name+" to go", func(ctx context.Context) error {
			if _, err := pods.Get(ctx, p.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it is there: %w", err)
			}
			return nil
		})
	}
}

// own are the ranges that a device takes itself, unless its configuration has others; unknown is
// its message about them.
var own = []string{"10.222.0.0/24", "172.28.222.0/24", "192.168.222.0/24", "10.111.222.0/24"}

const unknown = ", of which the cluster knows nothing"

// taken has routes of another program cover ranges on edge3, until the test ends.
func (s *system) taken(ranges ...string) {
	s.T.Helper()
	for _, r := range ranges {
		s.Must(s.shell(s.T.Context(), "edge3", "ip route replace blackhole "+r+" metric 4000 proto 77"))
	}
	s.T.Cleanup(func() {
		if _, err := s.shell(context.Background(), "edge3", "ip route flush proto 77"); err != nil {
			s.T.Error(err)
		}
	})
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// A device of the pool is on another network, with no way between the two, or with one and no
// WireGuard in the kernels: the others report which device it is. It comes back.
func TestSite_32_NotOnLinkIsSaid(t *testing.T) {
	s := newSystem(t)
	here := lab.LAN(3).String()
	move := func(ctx context.Context, from, to string) error {
		_, err := s.shell(ctx, "edge3", "ip address del "+from+" dev lan0; ip address add "+to+" dev lan0")
		return err
	}
	const away = "192.168.101.13/24"
	s.Check(move(t.Context(), here, away))
	back := sync.OnceValue(func() error { return move(context.Background(), away, here) })
	defer func() { s.Check(back()) }()
	s.WaitFor("the cloud to know where edge3 is", func(ctx context.Context) error {
		n, err := s.Client.CoreV1().Nodes().Get(ctx, "edge3", metav1.GetOptions{})
		if err == nil && !strings.Contains(n.Annotations["skerry.io/lan-addresses"], away) {
			err = fmt.Errorf("it has %v", n.Annotations)
		}
		return err
	})
	s.waitReason("edge1", "NotOnLink", "there is no tunnel to edge3 (")
	s.Check(back())
	s.waitReason("edge1", "Ready", "")
	s.waitReason("edge3", "Ready", "")
}
