package lan_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// as is a client of somebody else, judged by kube-apiserver as that one.
func (s *system) as(user string, groups ...string) kubernetes.Interface {
	s.T.Helper()
	c := rest.CopyConfig(s.Config)
	c.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated")}
	client, err := kubernetes.NewForConfig(c)
	s.Check(err)
	return client
}

// stranger is an address of the LAN that no host has.
const stranger = "192.168.100.66"

// liar registers a device as itself, with a range of its own choice and an address of the LAN that
// no host has, and has an administrator put it into the pool, as each new device.
func (s *system) liar(name, podCIDR, lan string) {
	s.T.Helper()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{v1alpha1.EdgeOwnLabel: ""},
			Annotations: map[string]string{v1alpha1.LANAddressesAnnotation: lan},
		},
		Spec: corev1.NodeSpec{PodCIDR: podCIDR, PodCIDRs: []string{podCIDR}},
	}
	_, err := s.as("system:node:"+name, "system:nodes").CoreV1().Nodes().Create(s.T.Context(), node, metav1.CreateOptions{})
	s.Check(err)
	s.T.Cleanup(func() {
		if err := s.Client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			s.T.Error(err)
		}
	})
	s.label(name, trial.Pool)
}

// waitOut waits until the output of a line of shell on a host has a text in it, or has it not.
func (s *system) waitOut(host, line, text string, there bool) {
	s.T.Helper()
	s.WaitFor(fmt.Sprintf("%s on %s to have %q: %v", line, host, text, there), func(ctx context.Context) error {
		out, err := s.shell(ctx, host, line)
		if err == nil && strings.Contains(out, text) != there {
			err = errors.New(out)
		}
		return err
	})
}

// linksAnew has devices open their links again, which a connection that is open outlives.
func (s *system) linksAnew(nodes ...string) {
	s.T.Helper()
	for _, n := range nodes {
		s.Cut(n)
	}
	for _, n := range nodes {
		s.WaitReady(n, false)
	}
	for _, n := range nodes {
		s.Heal(n)
	}
	for _, n := range nodes {
		s.WaitReady(n, true)
	}
}

// A device claims cloudcore's network as the range of its pods, another one claims all addresses,
// and that the pool's own range is a network that it is on. No device has a route for either, all
// link anew, the pool names the claimants, and routes, virtual IPs and the pool's subnets stay.
func TestClaims_01_03_DeviceThatClaimsOthersNetworks(t *testing.T) {
	s := newSystem(t)
	s.Apply(namespace, "apiVersion: skerry.io/v1alpha1\nkind: StaticRoute\nmetadata: {name: office}\nspec: {subnet: 172.20.0.0/16, gateway: "+lab.Client().Addr().String()+"}\n")
	s.T.Cleanup(func() {
		s.Must(s.Run(context.Background(), "kubectl", "delete", "staticroute", "office", "--timeout=60s"))
	})
	edges := []string{"edge1", "edge2", "edge3"}
	for _, n := range edges {
		s.waitOut(n, "ip route show proto 158", "172.20.0.0/16", true)
	}
	s.liar("evil", "198.51.100.0/24", stranger+"/24")
	s.liar("evil2", "0.0.0.0/0", lab.AllPods().Addr().Next().String()+"/16")
	for _, who := range []string{"evil claims 198.51.100.0/24", "evil2 claims 0.0.0.0/0"} {
		s.WaitFor("the pool to say that "+who, func(ctx context.Context) error {
			out, err := s.Run(ctx, "kubectl", "get", "nodepool", trial.Pool, "-o", `jsonpath={.status.conditions[?(@.type=="PodCIDRsRefused")].message}`)
			if err == nil && !strings.Contains(out, who) {
				err = errors.New(out)
			}
			return err
		})
	}
	s.vipPool("spare", `{addresses: ["192.168.100.240"], nodeSelector: {matchLabels: {kubernetes.io/hostname: edge1}}}`)
	s.vipService("spare", "", "")
	s.externalIP("spare", "192.168.100.240", "")
	// A device of the pool claims an address among the pods of edge2.
	ranges := map[string]netip.Prefix{}
	for _, n := range edges {
		ranges[n] = s.podCIDR(n)
	}
	s.liar("evil3", "10.244.201.0/24", ranges["edge2"].Addr().Next().Next().String()+"/24,192.168.100.68/24")
	s.waitOut("edge1", "ip route show proto 159", "10.244.201.0/24", true)
	out, err := s.Run(t.Context(), "kubectl", "get", "nodepool", trial.Pool, "-o", `jsonpath={.status.conditions[?(@.type=="PodSubnetsInvalid")].status}`)
	if s.Check(err); out == "True" {
		t.Error("the pool's own subnets are invalid by a device's word")
	}
	s.linksAnew(edges...)
	for _, n := range edges {
		s.WaitFor(n+" to have routes to the pods of the others", func(ctx context.Context) error {
			routes := s.Must(s.shell(ctx, n, "ip route"))
			for other, r := range ranges {
				if other != n && !strings.Contains(routes, r.String()+" via") {
					return fmt.Errorf("none to those of %s:\n%s", other, routes)
				}
			}
			return nil
		})
		if routes := s.Must(s.shell(t.Context(), n, "ip route; ip rule")); strings.Contains(routes, stranger) || !strings.Contains(routes, "172.20.0.0/16") {
			t.Errorf("%s has the routes\n%s", n, routes)
		}
	}
}

// The way to the cloud leads over an address that no guard of edge2 has, of the pool's own
// podSubnets, and a new device of the pool has it in its range. edge2 takes the route back by
// itself, reports it, keeps the routes to the others, and does not try it again after a restart
// without a link.
func TestClaims_01_DeviceTakesBackWhatCutsItOff(t *testing.T) {
	s := newSystem(t)
	const node, hidden, claimed = "edge2", "10.244.200.10", "10.244.200.0/24"
	cloud := lab.Cloud().String()
	for host, chain := range map[string][2]string{node: {"OUTPUT", "-d " + cloud + " -j DNAT --to-destination " + hidden}, "router": {"PREROUTING", "-d " + hidden + " -j DNAT --to-destination " + cloud}} {
		s.Must(s.shell(t.Context(), host, "iptables -t nat -I "+chain[0]+" "+chain[1]))
		t.Cleanup(func() {
			if _, err := s.shell(context.Background(), host, "iptables -t nat -D "+chain[0]+" "+chain[1]); err != nil {
				t.Error(err)
			}
		})
	}
	s.linksAnew(node)
	s.liar("evil", claimed, stranger+"/24")
	s.waitOut("edge1", "ip route show proto 159", claimed, true) // there it does no harm
	s.waitReason(node, "PodCIDRConflict", "it cut this device off from the cloud twice")
	routes := func(when string) {
		t.Helper()
		out := s.Must(s.shell(t.Context(), node, "ip route show proto 159"))
		if strings.Contains(out, claimed) || strings.Count(out, "via") != 2 {
			t.Errorf("%s %s has the routes\n%s", when, node, out)
		}
	}
	routes("once the route was taken back")
	s.waitOut(node, s.Root+"/bin/edgecore status", "it cut this device off from the cloud twice", true)
	s.linksAnew(node)
	routes("with a new link")
	s.Cut(node)
	s.Kill(node, "edgecore")
	s.Start(node, "edgecore")
	s.waitOut(node, s.Root+"/bin/edgecore status", "it cut this device off from the cloud twice", true)
	routes("started without a link")
	s.Heal(node)
	s.WaitReady(node, true)
}

// A user whose only rights are on Services in one namespace writes cloudcore's address into
// spec.externalIPs: no device has a rule for it, all link anew, and each reports the address that
// it ignores (CVE-2020-8554).
func TestClaims_02_UserTakesTheCloudsAddress(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	_, err := s.Client.RbacV1().Roles(ns).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "bob"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"*"}}},
	}, metav1.CreateOptions{})
	s.Check(err)
	_, err = s.Client.RbacV1().RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "bob"}, Subjects: []rbacv1.Subject{{Kind: "User", Name: "bob"}}, RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "bob"},
	}, metav1.CreateOptions{})
	s.Check(err)
	v := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: corev1.ServiceSpec{ExternalIPs: []string{lab.Cloud().String(), lab.Client().Addr().String()}}}
	for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		v.Spec.Ports = append(v.Spec.Ports, corev1.ServicePort{Name: strings.ToLower(string(protocol)), Port: 443, Protocol: protocol})
	}
	var made *corev1.Service
	s.WaitFor("bob to make his Service", func(ctx context.Context) (err error) {
		made, err = s.as("bob").CoreV1().Services(ns).Create(ctx, v, metav1.CreateOptions{})
		return err
	})
	edges := []string{"edge1", "edge2"}
	for _, n := range edges {
		s.waitOut(n, "nft list table ip kube-proxy", made.Spec.ClusterIP, true) // it has arrived, with its valid part
		rules := s.Must(s.shell(t.Context(), n, "nft list table ip kube-proxy"))
		for _, ip := range v.Spec.ExternalIPs {
			if strings.Contains(rules, ip+" ") {
				t.Errorf("%s has rules for %s:\n%s", n, ip, rules)
			}
		}
		s.waitOut(n, s.Root+"/bin/edgecore status", "externalIP "+lab.Cloud().String(), true)
	}
	s.linksAnew(edges...)
}

// A host of the LAN leads the address of a device's DNS server to that device, and gets no answers.
func TestClaims_06_HostOfTheLANLearnsNoNames(t *testing.T) {
	s := newSystem(t)
	const server = "169.254.20.20"
	s.Must(s.shell(t.Context(), trial.Client, "ip route replace "+server+"/32 via "+lab.LAN(1).Addr().String()))
	t.Cleanup(func() {
		if _, err := s.shell(context.Background(), trial.Client, "ip route del "+server+"/32"); err != nil {
			t.Error(err)
		}
	})
	ask := func(host, network string) (*dns.Msg, error) {
		return s.ask(t.Context(), host, network, "kubernetes.default.svc.cluster.local.")
	}
	for _, network := range []string{"udp", "tcp"} {
		s.WaitFor("the device itself to get an answer by "+network, func(context.Context) error {
			m, err := ask("edge1", network)
			if err == nil && len(m.Answer) == 0 {
				err = fmt.Errorf("%s", m)
			}
			return err
		})
		if m, err := ask(trial.Client, network); err == nil && (len(m.Answer) > 0 || m.Rcode != dns.RcodeRefused) {
			t.Errorf("a host of the LAN got by %s\n%s", network, m)
		}
	}
}

// A pod takes ports of its device by hostPort, those of the name server and of the pods' API among
// them: names are still answered by the device, and its API shows its own certificate.
func TestClaims_06_HostPortTakesNoServerOfTheDevice(t *testing.T) {
	s := newSystem(t)
	s.pod("thief", "edge2", func(p *corev1.Pod) {
		p.Labels = nil
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{
			{ContainerPort: 8080, HostPort: 53, Protocol: corev1.ProtocolUDP}, {ContainerPort: 8080, HostPort: 53}, {ContainerPort: 8080, HostPort: 10550},
		}
	})
	for _, network := range []string{"udp", "tcp"} {
		if m, err := s.ask(t.Context(), "edge2", network, "kubernetes.default.svc.cluster.local."); err != nil || len(m.Answer) == 0 {
			t.Errorf("by %s: %v, %v", network, m, err)
		}
	}
	out, err := s.shell(t.Context(), "edge2", "curl -sk -o /dev/null -w %{http_code} https://169.254.20.20:10550/version")
	if err != nil || out == "" || out == "000" || out == "404" {
		t.Errorf("the API for pods: %q, %v", out, err)
	}
}

// ask asks the name server of a host's own device.
func (s *system) ask(ctx context.Context, host, network, name string) (*dns.Msg, error) {
	h, err := s.Trial.Host(host)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	conn, err := h.Dial(ctx, network, "169.254.20.20:53")
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	m, _, err := (&dns.Client{Net: network, Timeout: 3 * time.Second}).ExchangeWithConnContext(ctx, new(dns.Msg).SetQuestion(name, dns.TypeA), &dns.Conn{Conn: conn})
	return m, err
}

// Somebody on the way to the name server answers without a question section, and to another
// question: no client gets such an answer, and edgecore keeps running.
func TestClaims_12_FalseNameServerCostsNothing(t *testing.T) {
	s := newSystem(t)
	const node = "edge2"
	client, err := s.Trial.Host(trial.Client)
	s.Check(err)
	var socket net.PacketConn
	s.Check(client.Do(func() (err error) {
		socket, err = net.ListenPacket("udp4", lab.Client().Addr().String()+":53")
		return err
	}))
	asked := make(chan string, 64)
	server := &dns.Server{PacketConn: socket, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		a, _ := dns.NewRR(q.Question[0].Name + " 60 IN A 6.6.6.6")
		m.Answer = []dns.RR{a}
		select {
		case asked <- q.Question[0].Name:
		default:
		}
		switch {
		case strings.HasPrefix(q.Question[0].Name, "none."):
			m.Question = nil
		case strings.HasPrefix(q.Question[0].Name, "other."):
			m.Question[0].Name = "bank.example."
		}
		_ = w.WriteMsg(m)
	})}
	go func() { _ = server.ActivateAndServe() }()
	defer func() { _ = server.Shutdown() }()
	s.Check(s.Trial.Set(t.Context(), node, []string{"modules.names.upstream=[" + lab.Client().Addr().String() + "]"}))
	defer func() { s.Check(s.Trial.Set(context.Background(), node, []string{"modules.names.upstream=[]"})) }()
	s.WaitFor("the name server to be asked", func(ctx context.Context) error {
		m, err := s.ask(ctx, node, "udp", "right.example.")
		if err == nil && len(m.Answer) == 0 {
			err = fmt.Errorf("%s", m)
		}
		return err
	})
	pid := s.Must(s.shell(t.Context(), node, "pgrep -x edgecore"))
	for i, name := range []string{"none.example.", "none.example.", "none.example.", "other.example.", "other.example."} {
		// A server that gave no right answer is not asked for a while.
		s.WaitFor("the name server to be asked again", func(ctx context.Context) error {
			m, err := s.ask(ctx, node, "udp", fmt.Sprintf("right%d.example.", i))
			if err == nil && len(m.Answer) == 0 {
				err = fmt.Errorf("%s", m)
			}
			return err
		})
		for len(asked) > 0 {
			<-asked
		}
		if m, err := s.ask(t.Context(), node, "udp", name); err == nil && len(m.Answer) > 0 {
			t.Errorf("%s is answered by\n%s", name, m)
		}
		select {
		case got := <-asked:
			if got != name {
				t.Errorf("the false server was asked for %s, not %s", got, name)
			}
		default:
			t.Errorf("the false server was not asked for %s", name)
		}
	}
	if now := s.Must(s.shell(t.Context(), node, "pgrep -x edgecore")); now != pid {
		t.Errorf("edgecore was process %s, and is %s", pid, now)
	}
}

// readdress gives a device another IPv4 address on the LAN, as its DHCP server may.
func (s *system) readdress(ctx context.Context, n int, from, to string) error {
	_, err := s.shell(ctx, fmt.Sprintf("edge%d", n), "ip address del "+from+" dev lan0; ip address add "+to+" dev lan0")
	return err
}

// renumbered is the address that a device gets in place of its own.
func renumbered(n int) string { return fmt.Sprintf("192.168.100.%d/24", 20+n) }

// All devices of a LAN with both families are cut off, and DHCP gives each another IPv4 address:
// their pods reach each other, though the cloud's Site has the addresses of before and the devices
// meet by IPv6.
func TestClaims_26_RoutesFollowDHCPWithoutTheCloud(t *testing.T) {
	s := newSystem(t)
	address, _ := s.web()
	s.cutAll()
	defer func() {
		for n := 1; n <= 3; n++ {
			s.Check(s.readdress(context.Background(), n, renumbered(n), lab.LAN(n).String()))
		}
	}()
	for n := 1; n <= 3; n++ {
		s.Check(s.readdress(t.Context(), n, lab.LAN(n).String(), renumbered(n)))
	}
	for n := 1; n <= 3; n++ {
		for other := 1; other <= 3; other++ {
			if via, err := netip.ParsePrefix(renumbered(other)); err == nil && other != n {
				s.waitOut(fmt.Sprintf("edge%d", n), "ip route show proto 159", "via "+via.Addr().String()+" ", true)
			}
		}
	}
	for n := 1; n <= 3; n++ {
		s.served(fmt.Sprintf("edge%d", n), address, "on-edge1", "on-edge2", "on-edge3")
	}
}

// A device loses its IPv4 address on the LAN and keeps IPv6: its pods leave the rotation of the
// others, and theirs leave its own, until the address is back.
func TestClaims_27_EndpointsFollowTheFamily(t *testing.T) {
	s := newSystem(t)
	address, _ := s.web()
	here := lab.LAN(1).String()
	back := sync.OnceValue(func() error {
		_, err := s.shell(context.Background(), "edge1", "ip address replace "+here+" dev lan0")
		return err
	})
	defer func() { s.Check(back()) }()
	s.Must(s.shell(t.Context(), "edge1", "ip address del "+here+" dev lan0"))
	s.served("edge2", address, "on-edge2", "on-edge3")
	s.served("edge3", address, "on-edge2", "on-edge3")
	s.served("edge1", address, "on-edge1")
	s.Check(back())
	for _, n := range []string{"edge1", "edge2", "edge3"} {
		s.served(n, address, "on-edge1", "on-edge2", "on-edge3")
	}
}

// A neighbour reboots without a link. Once it was found dead, no answer for its pod has the address
// of the boot before, however often it is asked; and no connection fails once it is back.
func TestClaims_28_NoAddressOfTheBootBefore(t *testing.T) {
	s := newSystem(t)
	_, pods := s.web()
	s.service("all", func(v *corev1.Service) { v.Spec.ClusterIP = corev1.ClusterIPNone })
	old := pods["edge3"].Status.PodIP
	const name = "all." + namespace + ".svc.cluster.local."
	has := func(ctx context.Context) (addresses string, err error) {
		m, err := s.ask(ctx, "edge1", "udp", name)
		if err != nil {
			return "", err
		}
		for _, rr := range m.Answer {
			if a, ok := rr.(*dns.A); ok {
				addresses += " " + a.A.String() + " "
			}
		}
		return addresses, nil
	}
	s.WaitFor("edge1 to have the three pods", func(ctx context.Context) error {
		all, err := has(ctx)
		if err == nil && (strings.Count(all, ".") != 9 || !strings.Contains(all, " "+old+" ")) {
			err = errors.New(all)
		}
		return err
	})
	s.cutAll()
	booted := make(chan error, 1)
	go func() { booted <- s.Trial.Reboot(t.Context(), "edge3", true) }()
	s.WaitFor("edge1 to find edge3 dead", func(ctx context.Context) error {
		all, err := has(ctx)
		if err == nil && strings.Contains(all, " "+old+" ") {
			err = errors.New(all)
		}
		return err
	})
	for ctx, end := t.Context(), time.Now().Add(4*time.Minute); ; {
		all, err := has(ctx)
		if err == nil && strings.Contains(all, " "+old+" ") {
			t.Fatalf("edge1 has %s, of the boot before, among%s", old, all)
		}
		if err == nil && strings.Count(all, ".") == 9 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("edge3 is not back: %s, %v", all, err)
		}
	}
	s.Check(<-booted)
}

// A hundred clients ask a Service without endpoints at once, by TCP: each is refused, and no client
// waits.
func TestClaims_29_EachRequestIsRefusedAtOnce(t *testing.T) {
	s := newSystem(t)
	address := s.service("empty", func(v *corev1.Service) { v.Spec.Selector = map[string]string{"app": "none"} })
	h, err := s.Trial.Host("edge1")
	s.Check(err)
	refused := func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		c, err := h.Dial(ctx, "tcp", address+":80")
		if err == nil {
			return errors.Join(errors.New("it connects"), c.Close())
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
		return nil
	}
	s.WaitFor("the rules to be there", refused)
	for _, family := range []string{"ip", "ip6"} {
		s.waitOut("edge1", "nft list chain "+family+" kube-proxy reject-chain", "tcp reset", true)
	}
	var clients sync.WaitGroup
	failed := make(chan error, 100)
	for range cap(failed) {
		clients.Go(func() { failed <- refused(t.Context()) })
	}
	clients.Wait()
	hung := 0
	for range cap(failed) {
		if err := <-failed; err != nil {
			hung++
			t.Log(err)
		}
	}
	if hung > 0 {
		t.Errorf("%d of %d were not refused", hung, cap(failed))
	}
}

// A device that is cut off gives the addresses of a headless Service in another order each time:
// the pods of all devices are first in turn, for clients that take the first address.
func TestClaims_30_EachAddressIsFirst(t *testing.T) {
	s := newSystem(t)
	_, pods := s.web()
	s.service("headless", func(v *corev1.Service) { v.Spec.ClusterIP = corev1.ClusterIPNone })
	each := func(ctx context.Context) error {
		first := map[string]int{}
		for range 60 { // by chance one of three is missing once in 10^10
			m, err := s.ask(ctx, "edge1", "udp", "headless."+namespace+".svc.cluster.local.")
			if err != nil {
				return err
			}
			if len(m.Answer) != len(pods) {
				return fmt.Errorf("%s", m)
			}
			if a, ok := m.Answer[0].(*dns.A); ok {
				first[a.A.String()]++
			}
		}
		for node, p := range pods {
			if first[p.Status.PodIP] == 0 {
				return fmt.Errorf("that of %s, %s, is never first: %v", node, p.Status.PodIP, first)
			}
		}
		return nil
	}
	s.WaitFor("each pod to be first", each)
	s.cutAll()
	s.WaitFor("each pod to be first without a link", each)
}

// A pod in the network of its device answers the other devices, which reach the Node's address on
// the uplink by no way of their own.
func TestClaims_31_HostNetworkPodAnswersNeighbours(t *testing.T) {
	s := newSystem(t)
	s.pod("host", "edge1", func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "host"}
		p.Spec.HostNetwork = true
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "POD_NAME", Value: "host"}, {Name: "NODE_NAME", Value: "edge1"}}
	})
	address := s.service("host", func(v *corev1.Service) { v.Spec.Selector = map[string]string{"app": "host"} })
	for _, n := range []string{"edge2", "edge3", "edge1"} {
		s.served(n, address, "host")
	}
	s.cutAll()
	s.served("edge2", address, "host")
}

// vipPool makes a NodePool with addresses, and vipService a Service with a request for one of them;
// "" for any.
func (s *system) vipPool(name, spec string) {
	s.T.Helper()
	s.Apply(namespace, "apiVersion: skerry.io/v1alpha1\nkind: NodePool\nmetadata: {name: "+name+", labels: {vips: "+name+"}}\nspec: "+spec+"\n")
	s.T.Cleanup(func() {
		s.Must(s.Run(context.Background(), "kubectl", "delete", "nodepool", name, "--ignore-not-found"))
	})
}

func (s *system) vipService(pool, suffix, request string) {
	s.T.Helper()
	name := pool + suffix
	if request != "" {
		request = ", " + v1alpha1.VIPAddressPrefix + pool + `: "` + request + `"`
	}
	s.Apply(namespace, "apiVersion: v1\nkind: Service\nmetadata: {name: "+name+", annotations: {"+v1alpha1.VIPPoolSelector+": vips="+pool+request+"}}\n"+
		"spec: {type: LoadBalancer, loadBalancerClass: "+v1alpha1.VIPClass+", selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}\n")
	s.T.Cleanup(func() {
		ctx := context.Background()
		s.Must(s.Run(ctx, "kubectl", "-n", namespace, "delete", "service", name, "--ignore-not-found"))
		s.WaitForIn(ctx, "the virtual IPs of "+name+" to go", func(ctx context.Context) error {
			out, err := s.Run(ctx, "kubectl", "get", "virtualips", "-o", "jsonpath={.items[*].spec.service.name}")
			if err == nil && strings.Contains(" "+out+" ", " "+name+" ") {
				err = errors.New(out)
			}
			return err
		})
	})
}

// externalIP waits until a Service has this EXTERNAL-IP, and its condition Allocated this text.
func (s *system) externalIP(service, want, text string) {
	s.T.Helper()
	s.WaitFor(fmt.Sprintf("Service %s to have EXTERNAL-IP %q and say %q", service, want, text), func(ctx context.Context) error {
		v, err := s.Client.CoreV1().Services(namespace).Get(ctx, service, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var have, says string
		for _, i := range v.Status.LoadBalancer.Ingress {
			have += i.IP
		}
		for _, c := range v.Status.Conditions {
			if c.Type == v1alpha1.VIPAllocated {
				says = c.Message
			}
		}
		if have != want || says == "" || !strings.Contains(says, text) {
			return fmt.Errorf("it has %q and says %q", have, says)
		}
		return nil
	})
}

// The LAN address of a device goes to no Service: one that asks for it is told its owner, and one
// that asks for any address gets another of the range. An address that its devices refuse is not
// shown as EXTERNAL-IP, and one whose pool has no nodes is; both Services have the reason.
func TestClaims_32_33_AddressesThatNoDeviceHolds(t *testing.T) {
	s := newSystem(t)
	mine := lab.LAN(2).Addr().String()
	s.vipPool("shop", `{addresses: ["`+mine+`-`+mine+`", "192.168.100.241"], nodeSelector: {}, allowRequested: true}`)
	s.vipService("shop", "-asks", mine)
	s.externalIP("shop-asks", "", mine)
	s.vipService("shop", "", "")
	s.externalIP("shop", "192.168.100.241", "")
	// The gateway of edge1, which no other device has; an address on no network of any.
	s.vipService("shop", "-away", "10.9.9.9")
	s.externalIP("shop-away", "", "10.9.9.9 is not shown: no node holds the address: edge1: ")
	s.vipPool("empty", `{addresses: ["192.168.100.242"], nodeSelector: {matchLabels: {nobody: has}}}`)
	s.vipService("empty", "", "")
	s.externalIP("empty", "192.168.100.242", "no node holds 192.168.100.242: pool empty has no nodes")
}
