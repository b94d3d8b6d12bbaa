package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	// lanRouter is the client's address on the LAN; behind it are the networks that these tests
	// route to.
	lanRouter = "192.168.100.200"
	office    = "172.20.0.1"
	plant     = "172.21.0.1"
)

// behindTheClient lets the client answer for the addresses of the tests.
func (s *system) behindTheClient() {
	s.T.Helper()
	for _, address := range []string{office, plant} {
		s.onHost("client", "ip", "address", "replace", address+"/32", "dev", "lo")
	}
}

// reaches gives the reason an address does not answer on a node. A refused connection is an answer.
func (s *system) reaches(ctx context.Context, node, address string) error {
	h, err := s.Trial.Host(node)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := h.Dial(ctx, "tcp", address+":9")
	if err == nil {
		return conn.Close()
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	return err
}

// kernelRoutes are the routes of Skerry on a node, one a line as ip-route(8) prints them.
func (s *system) kernelRoutes(node string) string {
	s.T.Helper()
	return strings.TrimSpace(s.onHost(node, "ip", "route", "show", "table", "all", "proto", "158"))
}

func (s *system) waitKernelRoutes(node string, want ...string) {
	s.T.Helper()
	s.WaitFor(fmt.Sprintf("the routes %q on %s", want, node), func(context.Context) error {
		got := s.kernelRoutes(node)
		if got == "" && len(want) == 0 {
			return nil
		}
		if lines := strings.Split(got, "\n"); len(lines) != len(want) {
			return fmt.Errorf("there are %q", lines)
		}
		for _, w := range want {
			if !strings.Contains(got, w) {
				return fmt.Errorf("there are %q", got)
			}
		}
		return nil
	})
}

// staticRoute applies a StaticRoute, and takes it away with the test.
func (s *system) staticRoute(name, spec string) {
	s.T.Helper()
	s.Apply("default", "apiVersion: skerry.io/v1alpha1\nkind: StaticRoute\nmetadata: {name: "+name+"}\nspec: "+spec+"\n")
	s.T.Cleanup(func() {
		ctx := context.Background()
		s.Mend(ctx)
		s.Must(s.Run(ctx, "kubectl", "delete", "staticroute", name, "--ignore-not-found", "--timeout=60s"))
	})
}

// waitStaticRoute waits for the output of `kubectl get` and the status: "APPLIED/DESIRED READY
// REASON node,node".
func (s *system) waitStaticRoute(name, want string) {
	s.T.Helper()
	s.WaitFor("StaticRoute "+name+" to be "+want, func(ctx context.Context) error {
		out, err := s.Run(ctx, "kubectl", "get", "staticroute", name, "-o", "json")
		if err != nil {
			return err
		}
		var o struct {
			Status struct {
				Applied, Desired int
				Nodes            []struct{ Name string }
				Conditions       []struct{ Type, Status, Reason, Message string }
			}
		}
		if err := json.Unmarshal([]byte(out), &o); err != nil {
			return err
		}
		var nodes []string
		for _, n := range o.Status.Nodes {
			nodes = append(nodes, n.Name)
		}
		slices.Sort(nodes)
		for _, c := range o.Status.Conditions {
			if c.Type != "Ready" {
				continue
			}
			if got := fmt.Sprintf("%d/%d %s %s %s", o.Status.Applied, o.Status.Desired, c.Status, c.Reason, strings.Join(nodes, ",")); got != want {
				return fmt.Errorf("it is %s (%s)", got, c.Message)
			}
			return nil
		}
		return errors.New("it has no condition Ready")
	})
}

func TestRoutes_01_NoGatewayEachNodeDetectsOne(t *testing.T) {
	s := newSystem(t)
	s.staticRoute("detected", "{subnet: 172.21.0.0/16, gatewayDetection: {probeIP: 203.0.113.1}}")
	s.waitStaticRoute("detected", "2/2 True Applied edge1,edge2")
	s.waitKernelRoutes("edge1", "172.21.0.0/16 via 10.10.1.1 dev wan0")
	s.waitKernelRoutes("edge2", "172.21.0.0/16 via 10.10.2.1 dev wan0")
	// Traffic: a router on the nodes' LAN is the next hop that each node finds for itself.
	s.behindTheClient()
	if err := s.reaches(t.Context(), "edge1", office); err == nil {
		t.Fatalf("%s answers without a route", office)
	}
	s.staticRoute("lan", "{subnet: 172.20.0.0/16, gatewayDetection: {probeIP: "+lanRouter+"}}")
	s.waitStaticRoute("lan", "2/2 True Applied edge1,edge2")
	for _, node := range []string{"edge1", "edge2"} {
		s.Check(s.reaches(t.Context(), node, office))
	}
	if table := s.Kubectl("get", "staticroute", "lan"); !strings.Contains(table, "172.20.0.0/16   detected   254     2         2         True") {
		t.Errorf("kubectl get staticroute lan:\n%s", table)
	}
}

// A route in a table of its own is used only where a rule selects the table.
func TestRoutes_10_TableThirtyServesItsRuleAlone(t *testing.T) {
	s := newSystem(t)
	s.behindTheClient()
	s.staticRoute("office", "{subnet: 172.20.0.0/16, gateway: "+lanRouter+", table: 30, metric: 5}")
	s.waitStaticRoute("office", "2/2 True Applied edge1,edge2")
	s.waitKernelRoutes("edge1", "172.20.0.0/16 via "+lanRouter+" dev lan0 table 30 metric 5")
	if err := s.reaches(t.Context(), "edge1", office); err == nil {
		t.Errorf("%s answers without a rule", office)
	}
	rule := []string{"to", "172.20.0.0/16", "lookup", "30", "priority", "100"}
	t.Cleanup(func() {
		_, _ = s.Run(context.Background(), append([]string{"exec", "edge1", "--", "ip", "rule", "del"}, rule...)...)
	})
	s.onHost("edge1", "ip", append([]string{"rule", "add"}, rule...)...)
	s.Check(s.reaches(t.Context(), "edge1", office))
	if err := s.reaches(t.Context(), "edge2", office); err == nil {
		t.Errorf("%s answers on a node without a rule", office)
	}
	s.Kubectl("delete", "staticroute", "office", "--timeout=60s")
	if err := s.reaches(t.Context(), "edge1", office); err == nil {
		t.Errorf("%s answers after the route has gone", office)
	}
}

func TestRoutes_02_ExplicitGatewayIsUsed(t *testing.T) {
	s := newSystem(t)
	s.behindTheClient()
	if err := s.reaches(t.Context(), "edge1", office); err == nil {
		t.Fatalf("%s answers without a route", office)
	}
	s.staticRoute("office", "{subnet: 172.20.0.0/16, gateway: "+lanRouter+"}")
	s.waitStaticRoute("office", "2/2 True Applied edge1,edge2")
	for _, node := range []string{"edge1", "edge2"} {
		s.waitKernelRoutes(node, "172.20.0.0/16 via "+lanRouter+" dev lan0")
		s.Check(s.reaches(t.Context(), node, office))
	}
	table := s.Kubectl("get", "staticroutes")
	if !strings.Contains(table, "SUBNET") || !strings.Contains(table, "172.20.0.0/16   "+lanRouter+"   254     2         2         True") {
		t.Errorf("kubectl get staticroutes:\n%s", table)
	}
	if status := s.onHost("edge1", s.Root+"/bin/edgecore", "status"); !strings.Contains(status, "1 of 1 fine") {
		t.Errorf("edgecore status:\n%s", status)
	}
}

func TestRoutes_03_04_RouteFollowsSelectorAndLabels(t *testing.T) {
	s := newSystem(t)
	s.behindTheClient()
	t.Cleanup(func() {
		s.Must(s.Run(context.Background(), "kubectl", "label", "node", "edge1", "edge2", "example.com/line-"))
	})
	s.Kubectl("label", "node", "edge1", "example.com/line=a")
	s.staticRoute("office", "{subnet: 172.20.0.0/16, gateway: "+lanRouter+", nodeSelector: {matchLabels: {example.com/line: a}}}")
	s.waitStaticRoute("office", "1/1 True Applied edge1")
	s.waitKernelRoutes("edge1", "172.20.0.0/16 via "+lanRouter)
	s.waitKernelRoutes("edge2")
	s.Kubectl("label", "node", "edge1", "example.com/line-")
	s.waitStaticRoute("office", "0/0 True NoNodes ")
	s.waitKernelRoutes("edge1")
	s.Kubectl("label", "node", "edge1", "edge2", "example.com/line=a")
	s.waitStaticRoute("office", "2/2 True Applied edge1,edge2")
	s.Check(s.reaches(t.Context(), "edge1", office))
}

// nodePool is the NodePool of that name, and the device decides by its copy of it, offline too. The
// status is not for devices.
func TestRoutes_03_NodePoolSelectsItsNodes(t *testing.T) {
	s := newSystem(t)
	floor := func(node string) {
		t.Helper()
		s.Apply("default", "apiVersion: skerry.io/v1alpha1\nkind: NodePool\nmetadata: {name: floor}\nspec: {nodeSelector: {matchLabels: {kubernetes.io/hostname: "+node+"}}}\n")
	}
	floor("edge2")
	t.Cleanup(func() {
		s.Must(s.Run(context.Background(), "kubectl", "delete", "nodepool", "floor", "--ignore-not-found"))
	})
	s.staticRoute("office", "{subnet: 172.20.0.0/16, gateway: "+lanRouter+", nodePool: floor}")
	s.waitStaticRoute("office", "1/1 True Applied edge2")
	s.waitKernelRoutes("edge2", "172.20.0.0/16 via "+lanRouter)
	s.waitKernelRoutes("edge1")
	if out := s.EdgeKubectl("edge2", "get", "staticroute", "office", "-o", "jsonpath={.spec.subnet}:{.status}"); out != "172.20.0.0/16:" {
		t.Errorf("edge2 holds %s", out)
	}
	s.Reboot("edge2", true)
	s.waitKernelRoutes("edge2", "172.20.0.0/16 via "+lanRouter)
	floor("edge1")
	s.waitStaticRoute("office", "1/1 True Applied edge1,edge2") // edge2 is offline, and has it still
	s.waitKernelRoutes("edge1", "172.20.0.0/16 via "+lanRouter)
	s.Heal("edge2")
	s.waitStaticRoute("office", "1/1 True Applied edge1")
	s.waitKernelRoutes("edge2")
}

// The Node is deleted, with its device off: its report is taken out of the status. It joins again,
// and catches up with changes and deletions in the meantime.
func TestRoutes_05_DeletedNodeLeavesTheStatusAndCatchesUp(t *testing.T) {
	s := newSystem(t)
	s.behindTheClient()
	s.staticRoute("office", "{subnet: 172.20.0.0/16, gateway: "+lanRouter+"}")
	s.staticRoute("plant", "{subnet: 172.21.0.0/16, gateway: "+lanRouter+"}")
	s.waitStaticRoute("office", "2/2 True Applied edge1,edge2")
	s.waitStaticRoute("plant", "2/2 True Applied edge1,edge2")
	s.Kill("edge1", "edgecore")
	s.Kubectl("delete", "node", "edge1")
	s.waitStaticRoute("office", "1/1 True Applied edge2")
	s.waitKernelRoutes("edge1", "172.20.0.0/16", "172.21.0.0/16") // it has not noticed yet
	s.staticRoute("office", "{subnet: 172.20.0.0/16, gateway: "+lanRouter+", mtu: 1400}")
	s.Kubectl("delete", "staticroute", "plant", "--timeout=60s") // waits for nodes that are there only
	s.waitStaticRoute("office", "1/1 True Applied edge2")
	s.Start("edge1", "edgecore")
	s.WaitReady("edge1", true)
	s.waitStaticRoute("office", "2/2 True Applied edge1,edge2")
	s.waitKernelRoutes("edge1", "172.20.0.0/16 via "+lanRouter+" dev lan0 mtu 1400")
	s.Check(s.reaches(t.Context(), "edge1", office))
}

func TestRoutes_06_RoutesGoBeforeTheObject(t *testing.T) {
	s := newSystem(t)
	s.staticRoute("office", "{subnet: 172.20.0.0/16, gateway: "+lanRouter+"}")
	s.waitStaticRoute("office", "2/2 True Applied edge1,edge2")
	s.Cut("edge2")
	s.Kubectl("delete", "staticroute", "office", "--wait=false")
	s.waitStaticRoute("office", "0/0 False Deleting edge2")
	s.waitKernelRoutes("edge1")
	s.waitKernelRoutes("edge2", "172.20.0.0/16") // it has no StaticRoutes
	s.Heal("edge2")
	s.waitKernelRoutes("edge2")
	s.WaitFor("the object to go", func(ctx context.Context) error {
		out, err := s.Run(ctx, "kubectl", "get", "staticroute", "office", "--ignore-not-found", "-o", "name")
		if err == nil && out != "" {
			err = errors.New("it is there")
		}
		return err
	})
}

func TestRoutes_09_NoNodeMatchesIsEmptyAndDeletable(t *testing.T) {
	s := newSystem(t)
	s.staticRoute("unmatched", "{subnet: 172.20.0.0/16, gateway: "+lanRouter+", nodePool: nowhere}")
	s.waitStaticRoute("unmatched", "0/0 True NoNodes ")
	s.Kubectl("delete", "staticroute", "unmatched", "--timeout=30s")
}

// parseTime reads a time as kube-apiserver writes it.
func parseTime(text string) time.Time {
	at, err := time.Parse(time.RFC3339, strings.TrimSpace(text))
	if err != nil {
		return time.Now().Add(time.Hour)
	}
	return at
}

func TestRoutes_18_TwoObjectsOneKeyOneWinner(t *testing.T) {
	s := newSystem(t)
	s.staticRoute("first", "{subnet: 172.20.0.0/16, gateway: "+lanRouter+"}")
	s.waitStaticRoute("first", "2/2 True Applied edge1,edge2")
	s.WaitFor("another second: creationTimestamp counts no less", func(ctx context.Context) error {
		at, err := s.Run(ctx, "kubectl", "get", "staticroute", "first", "-o", "jsonpath={.metadata.creationTimestamp}")
		if err == nil && !time.Now().UTC().Truncate(time.Second).After(parseTime(at)) {
			err = errors.New("it is the same")
		}
		return err
	})
	s.staticRoute("second", "{subnet: 172.20.0.0/16, type: Blackhole}")
	s.waitStaticRoute("second", "0/2 False Conflict edge1,edge2")
	if out := s.Kubectl("describe", "staticroute", "second"); !strings.Contains(out, "edge1: Conflict: StaticRoute first, which is older") {
		t.Errorf("kubectl describe:\n%s", out)
	}
	s.Kubectl("delete", "staticroute", "first", "--timeout=60s")
	s.waitStaticRoute("second", "2/2 True Applied edge1,edge2")
	s.waitKernelRoutes("edge1", "blackhole 172.20.0.0/16")
}

func TestRoutes_19_RebootWithoutTheCloudRestores(t *testing.T) {
	s := newSystem(t)
	s.behindTheClient()
	s.staticRoute("office", "{subnet: 172.20.0.0/16, gateway: "+lanRouter+"}")
	s.staticRoute("plant", "{subnet: 172.21.0.0/16, gateway: "+lanRouter+"}")
	s.waitStaticRoute("office", "2/2 True Applied edge1,edge2")
	s.waitStaticRoute("plant", "2/2 True Applied edge1,edge2")
	s.Reboot("edge1", true)
	s.waitKernelRoutes("edge1", "172.20.0.0/16 via "+lanRouter, "172.21.0.0/16 via "+lanRouter)
	s.Check(s.reaches(t.Context(), "edge1", office))
	// In this time one is changed and the other deleted.
	s.staticRoute("office", "{subnet: 172.20.0.0/16, gateway: "+lanRouter+", mtu: 1400}")
	s.Kubectl("delete", "staticroute", "plant", "--wait=false")
	s.waitStaticRoute("plant", "0/0 False Deleting edge1")
	s.Heal("edge1")
	s.waitKernelRoutes("edge1", "172.20.0.0/16 via "+lanRouter+" dev lan0 mtu 1400")
	s.waitStaticRoute("office", "2/2 True Applied edge1,edge2")
	s.waitKernelRoutes("edge2", "mtu 1400")
}

// edge1 reaches the cloud through the far end of a tunnel, which no arithmetic can derive: its
// packets for cloudcore go to 172.25.0.10, where they are sent on to it. A route that leads
// 172.25.0.0/16 elsewhere cuts the link.
func TestRoutes_20_CutsTheLinkAndIsRolledBack(t *testing.T) {
	s := newSystem(t)
	const cloud, far = "198.51.100.10", "172.25.0.10"
	on := func(host, verb string, rule ...string) {
		t.Helper()
		s.onHost(host, "iptables", append([]string{"-t", "nat", verb}, rule...)...)
	}
	router := []string{"PREROUTING", "-i", "up+", "-d", far, "-j", "DNAT", "--to-destination", cloud}
	device := []string{"OUTPUT", "-d", cloud, "-j", "DNAT", "--to-destination", far}
	redial := func() {
		s.Kill("edge1", "edgecore")
		s.Start("edge1", "edgecore")
	}
	on("router", "-I", router...)
	on("edge1", "-I", device...)
	t.Cleanup(func() {
		ctx := context.Background()
		for host, rule := range map[string][]string{"router": router, "edge1": device} {
			s.Must(s.Run(ctx, append([]string{"exec", host, "--", "iptables", "-t", "nat", "-D"}, rule...)...))
		}
		s.Check(s.Trial.Kill(ctx, "edge1", "edgecore"))
		s.Check(s.Trial.Start(ctx, "edge1", "edgecore"))
	})
	redial()
	s.staticRoute("fine", "{subnet: 172.20.0.0/16, gateway: "+lanRouter+"}")
	s.waitStaticRoute("fine", "2/2 True Applied edge1,edge2")
	// The far end is on the way of the link indeed.
	if out := strings.Fields(s.onHost("edge1", "sh", "-c", "iptables -t nat -nvxL OUTPUT | grep DNAT.*"+far)); len(out) == 0 || out[0] == "0" {
		t.Fatalf("the link does not go through %s: %v", far, out)
	}
	s.staticRoute("evil", "{subnet: 172.25.0.0/16, gateway: "+lanRouter+", nodeSelector: {matchLabels: {kubernetes.io/hostname: edge1}}}")
	s.waitStaticRoute("evil", "0/1 False RolledBack edge1")
	s.waitKernelRoutes("edge1", "172.20.0.0/16 via "+lanRouter)
	s.WaitReady("edge1", true)
	// It is the word of the node, through the link that it took back; and the route of another
	// subnet is as it was.
	s.waitStaticRoute("fine", "2/2 True Applied edge1,edge2")
	if out := s.Kubectl("describe", "staticroute", "evil"); !strings.Contains(out, "the cloud does not answer any more") {
		t.Errorf("kubectl describe:\n%s", out)
	}
	// Once the administrator has repaired it, the device applies it again.
	s.staticRoute("evil", "{subnet: 172.26.0.0/16, gateway: "+lanRouter+", nodeSelector: {matchLabels: {kubernetes.io/hostname: edge1}}}")
	s.waitStaticRoute("evil", "1/1 True Applied edge1")
}
