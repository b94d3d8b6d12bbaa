package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// shopVIP is on the LAN that the edges share with the client.
const shopVIP = "192.168.100.230"

// shop makes a pool of both edges, and a Service of the sample application with a virtual IP there,
// and waits for the first election.
func (s *system) shop() {
	s.T.Helper()
	s.makeShop("sample", "sample")
	s.elected()
}

// makeShop makes the objects, for the pods of an application. They go with the test.
func (s *system) makeShop(namespace, app string) {
	s.T.Helper()
	s.Apply("default", "apiVersion: skerry.io/v1alpha1\nkind: NodePool\nmetadata: {name: shop, labels: {site: shop}}\n"+
		"spec: {addresses: ["+shopVIP+"], nodeSelector: {}, advertisementInterval: 200ms}\n")
	s.Apply(namespace, `apiVersion: v1
kind: Service
metadata:
  name: shop
  annotations: {skerry.io/nodepool-labelselector: site=shop}
spec:
  type: LoadBalancer
  loadBalancerClass: skerry.io/vip
  selector: {app: `+app+`}
  ports: [{port: 80, targetPort: 8080}]
`)
	s.T.Cleanup(func() {
		ctx := context.Background()
		s.Mend(ctx)
		s.Must(s.Run(ctx, "kubectl", "-n", namespace, "delete", "service", "shop", "--ignore-not-found"))
		s.WaitForIn(ctx, "the virtual IP to go", func(ctx context.Context) error {
			out, err := s.Run(ctx, "kubectl", "get", "virtualips", "-o", "name")
			if err == nil && out != "" {
				err = errors.New(out + "is there")
			}
			return err
		})
		s.Must(s.Run(ctx, "kubectl", "delete", "nodepool", "shop", "--ignore-not-found"))
	})
}

// elected waits until the first election is over. It is won by the highest priority, whichever node
// was first: from then on the address stays where it is.
func (s *system) elected() {
	s.T.Helper()
	s.WaitFor("the first election", func(ctx context.Context) error {
		out, err := s.Run(ctx, "kubectl", "get", "virtualip", shopVIP, "-o", "json")
		if err != nil {
			return err
		}
		var o struct {
			Spec struct {
				Elected bool
				Nodes   []struct {
					Name     string
					Priority int
				}
			}
			Status shopStatus
		}
		if err := json.Unmarshal([]byte(out), &o); err != nil {
			return fmt.Errorf("%q: %w", out, err)
		}
		for _, n := range o.Spec.Nodes {
			if n.Priority == 200 && o.Spec.Elected && o.Status.Holder == n.Name {
				return nil
			}
		}
		return fmt.Errorf("%+v", o)
	})
}

type shopStatus struct {
	Holder     string
	ReadyNodes int
	Conditions []struct{ Type, Status, Message string }
}

// waitShop waits until a node holds the address, by its own word and by its kernel, so many could,
// and all conditions are as they should be.
func (s *system) waitShop(ready int) (holder string) {
	s.T.Helper()
	s.WaitFor("the virtual IP to be held", func(ctx context.Context) error {
		out, err := s.Run(ctx, "kubectl", "get", "virtualip", shopVIP, "-o", "json")
		if err != nil {
			return err
		}
		var o struct{ Status shopStatus }
		if err := json.Unmarshal([]byte(out), &o); err != nil {
			return fmt.Errorf("%q: %w", out, err)
		}
		status := o.Status
		if all := s.shopHolders(); !slices.Equal(all, []string{status.Holder}) {
			return fmt.Errorf("in the kernel of %v, by the status at %q", all, status.Holder)
		}
		for _, c := range status.Conditions {
			want := "True"
			if slices.Contains([]string{"OutOfRange", "DuplicateAddress", "VRIDConflict", "MultipleHolders"}, c.Type) {
				want = "False"
			}
			if c.Status != want {
				return fmt.Errorf("%s is %s: %s", c.Type, c.Status, c.Message)
			}
		}
		if holder = status.Holder; holder == "" || status.ReadyNodes != ready || len(status.Conditions) != 7 {
			return fmt.Errorf("it is %s", out)
		}
		return nil
	})
	return holder
}

// buys asks the address from the LAN's client: the answer of the pods behind it by themselves,
// without the page's own request to another Service.
func (s *system) buys(ctx context.Context) error {
	h, err := s.Trial.Host("client")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := h.Dial(ctx, "tcp", net.JoinHostPort(shopVIP, "80"))
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("GET /name HTTP/1.0\r\n\r\n")); err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	if err := conn.SetReadDeadline(deadline); err != nil {
		return err
	}
	answer := make([]byte, 64)
	n, err := conn.Read(answer)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(string(answer[:n]), "HTTP/1.") {
		return fmt.Errorf("it answered %q", answer[:n])
	}
	return nil
}

// shopHolders are the nodes whose kernel has the address.
func (s *system) shopHolders() []string {
	s.T.Helper()
	var all []string
	for _, node := range []string{"edge1", "edge2"} {
		if strings.Contains(s.onHost(node, "ip", "-o", "address", "show", "dev", "lan0"), " "+shopVIP+"/32 ") {
			all = append(all, node)
		}
	}
	return all
}

// waitShopAt waits until one of some nodes alone has the address in its kernel, and serves
// the client.
func (s *system) waitShopAt(nodes ...string) string {
	s.T.Helper()
	var holder string
	s.WaitFor(fmt.Sprintf("one of %v to hold the address and serve the client", nodes), func(ctx context.Context) error {
		all := s.shopHolders()
		if len(all) != 1 || !slices.Contains(nodes, all[0]) {
			return fmt.Errorf("held by %v", all)
		}
		holder = all[0]
		return s.buys(ctx)
	})
	return holder
}

func otherEdge(node string) string {
	if node == "edge1" {
		return "edge2"
	}
	return "edge1"
}

func TestVIPs_01_FromServiceToTraffic(t *testing.T) {
	s := newSystem(t)
	s.reportEvents("edge1", true)
	s.reportEvents("edge2", true)
	s.shop()
	holder := s.waitShop(2)
	if kernel := s.waitShopAt("edge1", "edge2"); kernel != holder {
		t.Errorf("%s has the address, the status says %s", kernel, holder)
	}
	table := s.Kubectl("get", "virtualips")
	if !strings.Contains(table, "HOLDER") || !strings.Contains(table, shopVIP) || !strings.Contains(table, holder) {
		t.Errorf("kubectl get virtualips:\n%s", table)
	}
	if out := s.Kubectl("-n", "sample", "get", "service", "shop", "-o", "jsonpath={.status.loadBalancer.ingress}"); out != `[{"hostname":"shop","ip":"`+shopVIP+`","ipMode":"Proxy"}]` {
		t.Errorf("the Service's status is %s", out)
	}
	s.WaitFor("the holder's event", func(ctx context.Context) error {
		out, err := s.Run(ctx, "kubectl", "get", "events", "--field-selector=reason=VirtualIPHolder,involvedObject.name="+holder, "-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(out, "virtual IP "+shopVIP+" of Service sample/shop") {
			err = fmt.Errorf("there is %q", out)
		}
		return err
	})
	if out := s.onHost(holder, s.Root+"/bin/edgecore", "status"); !strings.Contains(out, shopVIP+" (sample/shop, pool shop): Holder") {
		t.Errorf("edgecore status:\n%s", out)
	}
}

// A Node that is deleted loses its reports too. Its device registers it again and counts for its
// virtual IPs once more, without a restart there.
func TestVIPs_NodeDeletedAndRegisteredAgain(t *testing.T) {
	s := newSystem(t)
	s.shop()
	edge := "edge1"
	if s.waitShop(2) == edge {
		edge = "edge2"
	}
	started := s.startedAt(edge)
	s.Cut(edge)
	s.waitUnlinked(edge)
	s.Kubectl("delete", "node", edge)
	s.WaitFor("the virtual IP to be without that node", func(ctx context.Context) error {
		out, err := s.Run(ctx, "kubectl", "get", "virtualip", shopVIP, "-o", "jsonpath={.status.readyNodes}")
		if err == nil && out != "1" {
			err = fmt.Errorf("%q nodes are ready", out)
		}
		return err
	})
	s.Heal(edge)
	s.WaitReady(edge, true)
	s.waitShop(2)
	if now := s.startedAt(edge); now != started {
		t.Errorf("edgecore was started again: %s, was %s", now, started)
	}
}

// With the cloud cut: maintenance and back; the cloud comes back; a reboot of the whole pool
// offline.
func TestVIPs_21_AddressesMoveAndReturnWithoutTheCloud(t *testing.T) {
	s := newSystem(t)
	s.shop()
	s.waitShop(2)
	holder := s.waitShopAt("edge1", "edge2")
	s.Cut("edge1")
	s.Cut("edge2")
	s.Check(s.buys(t.Context()))

	s.onHost(holder, s.Root+"/bin/edgecore", "maintenance", "on")
	next := s.waitShopAt(otherEdge(holder))
	s.onHost(holder, s.Root+"/bin/edgecore", "maintenance", "off")

	s.Heal("edge1")
	s.Heal("edge2")
	s.WaitFor("the cloud to know of the new holder", func(ctx context.Context) error {
		out, err := s.Run(ctx, "kubectl", "get", "virtualip", shopVIP, "-o", "jsonpath={.status.holder}")
		if err == nil && out != next {
			err = fmt.Errorf("it says %q", out)
		}
		return err
	})
	s.waitShop(2)
	if all := s.shopHolders(); !slices.Equal(all, []string{next}) {
		t.Errorf("the address went from %s to %v when the cloud came back", next, all)
	}

	s.Cut("edge1")
	s.Cut("edge2")
	for _, node := range []string{"edge1", "edge2"} {
		s.Reboot(node, true)
	}
	s.waitShopAt("edge1", "edge2")
	s.Heal("edge1")
	s.Heal("edge2")
	s.waitShop(2)
}

// shoppers buy at the address all the while, and count.
type shoppers struct {
	stop chan struct{}
	done chan struct{}
	// Read after done.
	bought int
	lost   []error
}

func (s *system) shoppers() *shoppers {
	x := &shoppers{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(x.done)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			if err := s.buys(context.Background()); err != nil {
				x.lost = append(x.lost, err)
			} else {
				x.bought++
			}
			select {
			case <-x.stop:
				return
			case <-tick.C:
			}
		}
	}()
	return x
}

func (x *shoppers) end() {
	close(x.stop)
	<-x.done
}

// roles is each node's role for the address, and since when, by the nodes' own reports: it changes
// with every flap.
func (s *system) roles() string {
	s.T.Helper()
	return s.Kubectl("get", "virtualip", shopVIP, "-o", `jsonpath={range .status.nodes[*]}{.name} {.state} {.since}{"\n"}{end}`)
}

// rulesOf is the part of a device's kernel state that belongs to virtual IPs, and its keepalived.
func (s *system) rulesOf(node string) string {
	s.T.Helper()
	return s.onHost(node, "sh", "-c", "for c in iptables ip6tables; do for t in nat filter mangle raw; do $c-save -t $t | grep SKERRY-VIP; done; done; "+
		"ip -o address | grep -F '"+shopVIP+"/'; ip rule | grep -F '"+shopVIP+"'; for p in /proc/[0-9]*; do grep -qsx keepalived $p/comm && "+
		"tr '\\0' ' ' <$p/cmdline; done; true")
}

// VIPs_10: cloudcore restarts while clients are served: the claim is the same object, and no claim
// is lost. Traps_07: the module is switched off on the holder: its address, rules and keepalived
// are gone, and the other node serves. VIPs_25: the Service is deleted: the object goes, and so
// does everything on the devices; the rules of others there stay.
func TestVIPs_10_25_RestartChangesNothingAndReleaseLeavesNothing(t *testing.T) {
	s := newSystem(t)
	const mark = "rule-of-an-operator"
	for _, node := range []string{"edge1", "edge2"} {
		s.onHost(node, "iptables", "-t", "nat", "-I", "PREROUTING", "-d", "192.0.2.9", "-m", "comment", "--comment", mark, "-j", "ACCEPT")
		t.Cleanup(func() {
			s.Must(s.Run(context.Background(), "exec", node, "--", "iptables", "-t", "nat", "-D", "PREROUTING", "-d", "192.0.2.9", "-m", "comment", "--comment", mark, "-j", "ACCEPT"))
		})
		s.WaitFor(node+" to have nothing of the Services of tests before", func(context.Context) error {
			if there := s.rulesOf(node); there != "" {
				return errors.New(there)
			}
			return nil
		})
	}
	s.shop()
	s.waitShop(2)
	holder := s.waitShopAt("edge1", "edge2")

	const claims = `{range .items[*]}{.metadata.name} {.metadata.uid} {.spec.vrid} {.spec.service.uid}{"\n"}{end}`
	before, roles := s.Kubectl("get", "virtualips", "-o", "jsonpath="+claims), s.roles()
	leader := []string{"get", "lease", "-n", "skerry-system", "cloudcore", "-o", "jsonpath={.spec.holderIdentity}"}
	led := s.Kubectl(leader...)
	customers := s.shoppers()
	for _, replica := range options().Replicas() {
		s.Kill(replica, "cloudcore")
	}
	for _, replica := range options().Replicas() {
		s.Start(replica, "cloudcore")
	}
	for _, node := range []string{"edge1", "edge2"} {
		s.waitLinked(node)
	}
	s.WaitFor("a new leader of cloudcore", func(ctx context.Context) error {
		now, err := s.Run(ctx, append([]string{"kubectl"}, leader...)...)
		if err == nil && (now == "" || now == led) {
			err = fmt.Errorf("it is %q", now)
		}
		return err
	})
	s.waitShop(2)
	customers.end()
	if after := s.Kubectl("get", "virtualips", "-o", "jsonpath="+claims); after != before || strings.Count(after, "\n") != 1 {
		t.Errorf("claims before:\n%s\nand after:\n%s", before, after)
	}
	if after := s.roles(); after != roles {
		t.Errorf("what the nodes were before:\n%s\nand after:\n%s", roles, after)
	}
	if len(customers.lost) > 0 {
		t.Errorf("%d of %d customers were not served: %v", len(customers.lost), customers.bought+len(customers.lost), customers.lost[0])
	}

	s.set(holder, "modules.vip.enable=false", "modules.vip.enable=true")
	other := s.waitShopAt(otherEdge(holder))
	s.WaitFor("nothing of virtual IPs to be left on "+holder, func(context.Context) error {
		if left := s.rulesOf(holder); left != "" {
			return errors.New(left)
		}
		return nil
	})

	s.Kubectl("-n", "sample", "delete", "service", "shop")
	s.WaitFor("nothing to be left on "+other, func(context.Context) error {
		left := s.rulesOf(other)
		// The chains stay, empty, and so does keepalived, with no instance: the next
		// address needs both.
		if strings.Contains(left, shopVIP) || strings.Contains(left, "DNAT") {
			return errors.New(left)
		}
		return nil
	})
	for _, node := range []string{"edge1", "edge2"} {
		if out := s.onHost(node, "iptables", "-t", "nat", "-S", "PREROUTING"); !strings.Contains(out, mark) {
			t.Errorf("%s lost what is not ours:\n%s", node, out)
		}
	}
	if all := s.shopHolders(); len(all) > 0 {
		t.Errorf("%v hold it still", all)
	}
}

// Another host on the LAN has the address already: no node claims it, the object names that host,
// and it is claimed when that goes.
func TestVIPs_DuplicateAddress(t *testing.T) {
	s := newSystem(t)
	t.Cleanup(func() {
		s.Must(s.Run(context.Background(), "exec", "client", "--", "sh", "-c", "ip address del "+shopVIP+"/32 dev lo 2>/dev/null; true"))
	})
	s.onHost("client", "ip", "address", "replace", shopVIP+"/32", "dev", "lo") // a Linux host answers for all its addresses on every interface
	s.makeShop("sample", "sample")
	condition := func(want string) {
		t.Helper()
		s.WaitFor("DuplicateAddress to be "+want, func(ctx context.Context) error {
			out, err := s.Run(ctx, "kubectl", "get", "virtualip", shopVIP, "-o", `jsonpath={.status.conditions[?(@.type=="DuplicateAddress")].status} {.status.nodes[*].duplicateOf}`)
			if err == nil && out != want {
				err = fmt.Errorf("it is %q", out)
			}
			return err
		})
	}
	mac := strings.TrimSpace(s.onHost("client", "sh", "-c", "ip -o link | grep -v LOOPBACK | head -1 | sed 's/.*link.ether \\([^ ]*\\) .*/\\1/'"))
	condition("True " + mac + " " + mac)
	if all := s.shopHolders(); len(all) > 0 {
		t.Errorf("claimed by %v all the same", all)
	}
	s.onHost("client", "ip", "address", "del", shopVIP+"/32", "dev", "lo")
	condition("False ")
	s.waitShop(2)
	s.waitShopAt("edge1", "edge2")
}
