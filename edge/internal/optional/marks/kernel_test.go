package marks_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/mangle"
	"github.com/skerry-io/skerry/edge/internal/optional/marks"
	"github.com/skerry-io/skerry/tests/netns/wire"
)

// system is a device and a client on one cable.
type system struct {
	t              *testing.T
	device, client *wire.Host
	driver         *mangle.Driver
}

func newSystem(t *testing.T) *system {
	t.Helper()
	l := &system{t, wire.NewHost(t), wire.NewHost(t), mangle.New()}
	wire.Cable(t, l.device, "lan0", l.client, "eth0")
	for _, a := range []string{"192.0.2.1/24", "192.0.2.100/24", "2001:db8::1/64", "2001:db8::100/64"} {
		l.device.Address(t, "lan0", a)
	}
	l.client.Address(t, "eth0", "192.0.2.2/24")
	l.client.Address(t, "eth0", "2001:db8::2/64")
	return l
}

// apply makes the device's kernel mark for these Services, and returns how many families
// it changed.
func (l *system) apply(services ...*corev1.Service) (changed int) {
	l.t.Helper()
	c := marks.Collect(marks.Objects{Services: services})
	l.device.Must(l.t, func() (err error) {
		changed, err = l.driver.Apply(context.Background(), marks.Plan(&c, marks.Settings{}))
		return err
	})
	return changed
}

// on runs a line of shell on the device.
func (l *system) on(line string) string {
	l.t.Helper()
	var text []byte
	l.device.Must(l.t, func() (err error) {
		if text, err = exec.Command("sh", "-c", line).CombinedOutput(); err != nil {
			return errors.New(line + ": " + string(text))
		}
		return nil
	})
	return string(text)
}

// rules are those of both families' mangle tables, without counters and policies.
func (l *system) rules() []string {
	l.t.Helper()
	var out []string
	for line := range strings.Lines(l.on("iptables -t mangle -S; ip6tables -t mangle -S")) {
		if !strings.HasPrefix(line, "-P ") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

// send sends a few bytes from the client to the server there (UDP: without a listener), and
// returns the mark of the connection at the device.
func (l *system) send(network, address string) uint32 {
	l.t.Helper()
	var from netip.AddrPort
	l.client.Must(l.t, func() error {
		conn, err := net.DialTimeout(network, address, 10*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		from = netip.MustParseAddrPort(conn.LocalAddr().String())
		_, err = conn.Write([]byte("x"))
		return err
	})
	to := netip.MustParseAddrPort(address)
	family := netlink.InetFamily(netlink.FAMILY_V4)
	if to.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var flows []*netlink.ConntrackFlow
		l.device.Must(l.t, func() (err error) {
			flows, err = netlink.ConntrackTableList(netlink.ConntrackTable, family)
			return err
		})
		for _, f := range flows {
			dst, _ := netip.AddrFromSlice(f.Forward.DstIP)
			if dst.Unmap() == to.Addr() && f.Forward.DstPort == to.Port() && f.Forward.SrcPort == from.Port() {
				return f.Mark
			}
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("the device knows no connection from %s to %s: %v", from, address, flows)
		}
	}
}

func (l *system) marked(want marks.Mark, network, address string) {
	l.t.Helper()
	if got := l.send(network, address); got != uint32(want) {
		l.t.Errorf("%s to %s is marked %d, want %d", network, address, got, want)
	}
}

// listen serves on the device, so that a TCP connection lasts.
func (l *system) listen(network string, ports ...int) {
	l.t.Helper()
	for _, port := range ports {
		l.device.Must(l.t, func() error {
			s, err := net.Listen(network, fmt.Sprintf(":%d", port))
			if err == nil {
				l.t.Cleanup(func() { _ = s.Close() })
			}
			return err
		})
	}
}

func service(name string, kind corev1.ServiceType, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.ServiceSpec{Type: kind, Ports: ports}}
}

func TestServices_04_FortyNodePortsInChunksAreMarked(t *testing.T) {
	l := newSystem(t)
	var ports []corev1.ServicePort
	for i := range int32(40) {
		ports = append(ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: 1000 + i, NodePort: 30000 + i})
	}
	l.listen("tcp", 1000, 30000, 30014, 30015, 30039, 30040)
	l.apply(service("many", corev1.ServiceTypeNodePort, ports...))
	var sizes []int
	for _, r := range l.rules() {
		if _, list, ok := strings.Cut(r, "--dports "); ok {
			list, _, _ = strings.Cut(list, " ")
			sizes = append(sizes, strings.Count(list, ",")+1)
		}
	}
	if diff := cmp.Diff([]int{15, 15, 10, 15, 15, 10}, sizes); diff != "" {
		t.Errorf("ports in each rule, of both families (-want +got):\n%s", diff)
	}
	for _, port := range []string{"30000", "30014", "30015", "30039"} {
		l.marked(marks.TCPService, "tcp", "192.0.2.1:"+port)
	}
	l.marked(0, "tcp", "192.0.2.1:30040")
	l.marked(0, "tcp", "192.0.2.1:1000") // the Service's own port is no NodePort
	l.marked(0, "udp", "192.0.2.1:30000")
}

// The changes that nftables reports while the same is applied again and again; at the end of the
// list a change of ours shows that it would have reported one.
func TestServices_06_IdenticalInputChangesNothing(t *testing.T) {
	l := newSystem(t)
	web := service("web", corev1.ServiceTypeLoadBalancer, corev1.ServicePort{Port: 80, NodePort: 30080}, corev1.ServicePort{Port: 53, Protocol: "UDP"})
	web.Spec.ExternalIPs = []string{"192.0.2.100", "2001:db8::100"}
	ace := service("ace", corev1.ServiceTypeClusterIP, corev1.ServicePort{Port: 443})
	ace.Namespace = "cattle-system"
	odd := service("odd", corev1.ServiceTypeNodePort, corev1.ServicePort{Port: 80, NodePort: 30081})
	odd.Namespace = "a' $(b) \\ n" // no API server accepts it
	if got := l.apply(web, ace, odd); got != 2 {
		t.Errorf("%d families changed at first", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changes := make(chan string, 100)
	l.device.Must(t, func() error {
		monitor := exec.CommandContext(ctx, "nft", "monitor")
		out, err := monitor.StdoutPipe()
		if err != nil {
			return err
		}
		go func() {
			defer close(changes)
			for lines := bufio.NewScanner(out); lines.Scan(); {
				changes <- lines.Text()
			}
		}()
		t.Cleanup(func() { _ = monitor.Wait() })
		return monitor.Start()
	})
	// It listens once it reports a table.
	for i, listening := 0, false; !listening; i++ {
		l.on(fmt.Sprintf("nft add table ip listening%d", i))
		select {
		case <-changes:
			listening = true
		case <-time.After(100 * time.Millisecond):
		}
	}
	for range 5 {
		if got := l.apply(odd, ace, web); got != 0 {
			t.Errorf("%d families changed although nothing did", got)
		}
	}
	l.on("nft add table ip atlast")
	for line := range changes {
		if strings.Contains(line, "atlast") {
			break
		}
		if !strings.Contains(line, "listening") && !strings.HasPrefix(line, "# new generation") {
			t.Errorf("the kernel changed: %s", line)
		}
	}
	cancel()
}

func TestServices_07_ForeignRulesStayAndOursAreRepaired(t *testing.T) {
	l := newSystem(t)
	l.listen("tcp", 30080)
	web := service("web", corev1.ServiceTypeNodePort, corev1.ServicePort{Port: 80, NodePort: 30080})
	l.on("for i in iptables ip6tables; do $i -t mangle -N OTHERS; $i -t mangle -A PREROUTING -p udp -m udp --dport 9 -j OTHERS; " +
		"$i -t mangle -A OTHERS -j MARK --set-xmark 0x1/0x1; $i -t mangle -A OUTPUT -p tcp -m tcp --dport 9 -j DROP; done")
	before := l.rules()
	l.apply(web)
	want := l.rules()
	l.marked(marks.TCPService, "tcp", "192.0.2.1:30080")
	for what, line := range map[string]string{
		"flushed":                   "iptables -t mangle -F SKERRY-MARKS",
		"no way there":              "iptables -t mangle -D PREROUTING -m conntrack --ctdir ORIGINAL -j SKERRY-MARKS",
		"a rule too many":           "ip6tables -t mangle -A SKERRY-MARKS -j ACCEPT",
		"all gone":                  "ip6tables -t mangle -F PREROUTING; ip6tables -t mangle -F SKERRY-MARKS; ip6tables -t mangle -X SKERRY-MARKS; ip6tables -t mangle -A PREROUTING -p udp -m udp --dport 9 -j OTHERS",
		"a chain of ours from aged": "iptables -t mangle -N SKERRY-ACE; iptables -t mangle -A SKERRY-ACE -j DROP; iptables -t mangle -I PREROUTING -p tcp -m addrtype --dst-type LOCAL -m conntrack --ctdir ORIGINAL -m tcp --dport 6443 -j SKERRY-ACE",
	} {
		l.on(line)
		if got := l.apply(web); got != 1 {
			t.Errorf("%s: %d families repaired", what, got)
		}
		if diff := cmp.Diff(want, l.rules()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		l.marked(marks.TCPService, "tcp", "192.0.2.1:30080")
	}
	// Another program restores marks, as its first act: ours is set behind it.
	l.on("iptables -t mangle -A PREROUTING -j CONNMARK --restore-mark")
	l.apply(web)
	l.marked(marks.TCPService, "tcp", "192.0.2.1:30080")
	if all := strings.Join(l.rules(), "\n"); strings.Index(all, "--restore-mark") > strings.Index(all, "-A PREROUTING -m conntrack --ctdir ORIGINAL -j SKERRY-MARKS") {
		t.Errorf("marks are restored behind ours:\n%s", all)
	}
	l.on("iptables -t mangle -D PREROUTING -j CONNMARK --restore-mark")
	l.device.Must(t, func() error { return marks.Clear(t.Context(), l.driver) })
	if diff := cmp.Diff(before, l.rules()); diff != "" {
		t.Errorf("what is left (-want +got):\n%s", diff)
	}
}

func TestServices_11_IPv6AndDualStackAreMarked(t *testing.T) {
	l := newSystem(t)
	l.listen("tcp", 80, 81, 30080)
	both := service("both", corev1.ServiceTypeLoadBalancer, corev1.ServicePort{Port: 80}, corev1.ServicePort{Port: 53, Protocol: "UDP"})
	both.Annotations = map[string]string{"kube-vip.io/loadbalancerIPs": "192.0.2.100,2001:db8::100"}
	six := service("six", corev1.ServiceTypeLoadBalancer, corev1.ServicePort{Port: 81})
	six.Spec.LoadBalancerIP = "2001:db8::100"
	node := service("node", corev1.ServiceTypeNodePort, corev1.ServicePort{Port: 80, NodePort: 30080})
	l.apply(both, six, node)
	l.marked(marks.TCPService, "tcp", "192.0.2.100:80")
	l.marked(marks.TCPService, "tcp", "[2001:db8::100]:80")
	l.marked(marks.UDPService, "udp", "192.0.2.100:53")
	l.marked(marks.UDPService, "udp", "[2001:db8::100]:53")
	l.marked(0, "tcp", "192.0.2.100:81") // of the IPv6 address alone
	l.marked(marks.TCPService, "tcp", "[2001:db8::100]:81")
	l.marked(0, "tcp", "[2001:db8::1]:81")
	l.marked(marks.TCPService, "tcp", "192.0.2.1:30080")
	l.marked(marks.TCPService, "tcp", "[2001:db8::1]:30080")
}

func TestServices_12_ServicesThatGoLeaveNoRule(t *testing.T) {
	l := newSystem(t)
	l.listen("tcp", 30080, 30081)
	stays := service("stays", corev1.ServiceTypeNodePort, corev1.ServicePort{Port: 80, NodePort: 30080})
	goes := service("goes", corev1.ServiceTypeNodePort, corev1.ServicePort{Port: 80, NodePort: 30081})
	l.apply(stays)
	before := l.rules()
	l.apply(stays, goes)
	l.marked(marks.TCPService, "tcp", "192.0.2.1:30081")
	l.apply(stays)
	l.marked(0, "tcp", "192.0.2.1:30081")
	l.marked(marks.TCPService, "tcp", "192.0.2.1:30080")

	all := []*corev1.Service{stays}
	for i := range 1000 {
		s := service(fmt.Sprintf("s%d", i), corev1.ServiceTypeLoadBalancer, corev1.ServicePort{Port: 80})
		s.Spec.LoadBalancerIP = netip.AddrFrom4([4]byte{198, 51, byte(i / 250), byte(i%250 + 1)}).String()
		if i == 999 {
			s.Spec.LoadBalancerIP = "192.0.2.100"
		}
		all = append(all, s)
	}
	l.listen("tcp", 80)
	for len(all) > 1 {
		l.apply(all...)
		want := len(before) + len(all) - 1
		if got := len(l.rules()); got != want {
			t.Fatalf("%d rules, want %d", got, want)
		}
		l.marked(marks.TCPService, "tcp", "192.0.2.100:80")
		all = append(all[:1], all[len(all)-len(all)/3:]...)
	}
	l.apply(stays)
	if diff := cmp.Diff(before, l.rules()); diff != "" {
		t.Errorf("what is left (-want +got):\n%s", diff)
	}
	l.marked(0, "tcp", "192.0.2.100:80")
	l.apply()
	if left := l.rules(); len(left) > 0 {
		t.Errorf("what is left: %q", left)
	}
}

// Connections of pods to others at a port of a Service are not marked: it does not come to the
// device.
func TestPlan_throughTraffic(t *testing.T) {
	l := newSystem(t)
	pod := wire.NewHost(t)
	wire.Cable(t, l.device, "cni0", pod, "eth0")
	l.device.Address(t, "cni0", "10.88.0.1/24")
	pod.Address(t, "eth0", "10.88.0.2/24")
	pod.Route(t, "0.0.0.0/0", "10.88.0.1")
	l.client.Route(t, "10.88.0.0/24", "192.0.2.1")
	l.apply(service("web", corev1.ServiceTypeNodePort, corev1.ServicePort{Port: 80, NodePort: 30080}))
	l.client.Must(t, func() error {
		s, err := net.Listen("tcp", ":30080")
		if err == nil {
			t.Cleanup(func() { _ = s.Close() })
		}
		return err
	})
	l.client = pod
	l.marked(0, "tcp", "192.0.2.2:30080")
}
