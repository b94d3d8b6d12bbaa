package services_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The range of Services is the cluster's own, of its ServiceCIDRs; one that is added counts too.
func TestServices_03_AddressesInTheServiceCIDRAreSkipped(t *testing.T) {
	s := newSystem(t)
	kubernetes, err := s.Client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	s.Check(err)
	inside := kubernetes.Spec.ClusterIP
	s.make(`apiVersion: v1
kind: Service
metadata: {name: ranged, namespace: sample}
spec:
  type: LoadBalancer
  allocateLoadBalancerNodePorts: false
  loadBalancerIP: ` + inside + `
  externalIPs: [203.0.113.9]
  ports: [{port: 8080}]
`)
	s.collected("edge1", "/ranged ", "service sample/ranged TCP 8080 LoadBalancer at 203.0.113.9")
	s.waitRule("edge1", "-d 203.0.113.9/32 -p tcp -m multiport --dports 8080", true)
	s.waitRule("edge1", "-d "+inside+"/32", false)
	s.make("apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: second}\nspec: {cidrs: [203.0.113.0/24]}\n")
	s.collected("edge1", "/ranged ", "service sample/ranged TCP 8080 LoadBalancer")
	s.waitRule("edge1", "203.0.113.9", false)
}

// The last that counts of a Service's addresses is in its status: here a virtual IP, which the
// cloud has given it from a pool. With an external address that one counts.
func TestServices_02_OwnVirtualIPCountsLast(t *testing.T) {
	s := newSystem(t)
	s.make("apiVersion: skerry.io/v1alpha1\nkind: NodePool\nmetadata: {name: shop, labels: {site: shop}}\nspec: {addresses: [192.168.100.230], nodeSelector: {}}\n")
	s.make(`apiVersion: v1
kind: Service
metadata: {name: till, namespace: sample, annotations: {skerry.io/nodepool-labelselector: site=shop}}
spec:
  type: LoadBalancer
  loadBalancerClass: skerry.io/vip
  allocateLoadBalancerNodePorts: false
  selector: {app: sample}
  ports: [{port: 80, targetPort: 8080}]
`)
	s.collected("edge1", "/till ", "service sample/till TCP 80 LoadBalancer at 192.168.100.230")
	s.waitRule("edge1", "-d 192.168.100.230/32 -p tcp -m multiport --dports 80", true)
	s.Kubectl("-n", "sample", "patch", "service", "till", "--type=merge", "-p", `{"spec":{"externalIPs":["192.168.100.231"]}}`)
	s.collected("edge1", "/till ", "service sample/till TCP 80 LoadBalancer at 192.168.100.231")
	s.Kubectl("-n", "sample", "delete", "service", "till")
	s.waitRule("edge1", "192.168.100.23", false)
	s.WaitFor("the virtual IP to go", func(ctx context.Context) error {
		out, err := s.Run(ctx, "kubectl", "get", "virtualips", "-o", "name")
		if err == nil && out != "" {
			err = errors.New(out)
		}
		return err
	})
}

const exposed = `apiVersion: v1
kind: Service
metadata: {name: exposed, namespace: sample}
spec:
  type: NodePort
  ports: [{name: tcp, port: 80, nodePort: 30180}, {name: udp, port: 53, nodePort: 30153, protocol: UDP}]
---
apiVersion: v1
kind: Service
metadata: {name: placed, namespace: sample}
spec:
  type: LoadBalancer
  allocateLoadBalancerNodePorts: false
  externalIPs: [192.168.100.240]
  ports: [{name: tcp, port: 8081}, {name: udp, port: 8082, protocol: UDP}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, namespace: sample}
spec:
  tls: [{hosts: [pay.example.com], secretName: none}]
  rules:
  - {host: shop.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: exposed, port: {number: 80}}}}]}}
  - {host: pay.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: exposed, port: {number: 80}}}}]}}
`

func TestServices_05_MarksOfPackets(t *testing.T) {
	s := newSystem(t)
	s.on("edge1", "ip address add 192.168.100.240/32 dev "+lan)
	t.Cleanup(func() { _, _ = s.tryOn(context.Background(), "edge1", "ip address del 192.168.100.240/32 dev "+lan) })
	for _, port := range []int{80, 443, 12346, 30180, 30181, 8081} {
		s.listen("edge1", port)
	}
	for _, port := range []string{"80", "443", "30180"} {
		s.marked(0, "tcp", edge1+":"+port)
	}
	s.make(exposed)
	s.marked(24, "tcp", edge1+":30180")
	s.marked(25, "udp", edge1+":30153")
	s.marked(26, "tcp", edge1+":80")
	s.marked(27, "tcp", edge1+":443")
	s.marked(23, "tcp", edge1+":12346")
	s.marked(24, "tcp", "192.168.100.240:8081")
	s.marked(25, "udp", "192.168.100.240:8082")
	s.marked(0, "tcp", edge1+":8081") // of another address
	s.marked(0, "tcp", edge1+":30181")
	s.marked(24, "tcp", "[2001:db8:100::11]:30180")
	if out := s.on("edge1", s.Root+"/bin/edgecore status"); !strings.Contains(out, "service sample/exposed TCP 80 nodePort 30180 NodePort") {
		t.Errorf("edgecore status:\n%s", out)
	}
	s.Kubectl("-n", "sample", "delete", "ingress", "web")
	s.marked(0, "tcp", edge1+":443")
}

// A node's collection is in the status of a ServiceCollection, and follows the Services.
func TestStatus_ofACollection(t *testing.T) {
	s := newSystem(t)
	s.make("apiVersion: skerry.io/v1alpha1\nkind: ServiceCollection\nmetadata: {name: all}\n")
	s.make(exposed)
	want := "edge1 Applied true,edge2 Applied true, True True"
	s.WaitFor("the status", func(ctx context.Context) error {
		out, err := s.Run(ctx, "kubectl", "get", "servicecollection", "all", "-o",
			`go-template={{range .status.nodes}}{{$n := .name}}{{$r := .reason}}{{range .entries}}{{if eq . "service sample/exposed TCP 80 nodePort 30180 NodePort"}}{{$n}} {{$r}} true,{{end}}{{end}}{{end}} `+
				`{{range .status.conditions}}{{if eq .type "Ready"}}{{.status}} {{end}}{{if eq .type "Complete"}}{{.status}}{{end}}{{end}}`)
		if err != nil {
			return err
		}
		if text := strings.TrimSpace(out); text != want && text != strings.Replace(want, "True True", "TrueTrue ", 1) && text != strings.Replace(want, " True True", " TrueTrue", 1) {
			return fmt.Errorf("it is %q", text)
		}
		return nil
	})
	if out := s.Kubectl("get", "servicecollections"); !strings.Contains(out, "REPORTING") || !strings.Contains(out, "True") {
		t.Errorf("kubectl get servicecollections:\n%s", out)
	}
}

const cattle = `apiVersion: v1
kind: Namespace
metadata: {name: cattle-system}
---
apiVersion: v1
kind: Service
metadata: {name: cattle-cluster-agent, namespace: cattle-system}
spec:
  selector: {app: none}
  ports: [{port: 443}]
`

func TestServices_08_ACEOpensToNamedSourcesOnly(t *testing.T) {
	s := newSystem(t)
	s.listen("edge1", 6443)
	ask := func(ctx context.Context, to string) error {
		_, err := s.ask(ctx, "tcp", to)
		return err
	}
	open := func(to string, want bool) {
		t.Helper()
		s.WaitFor(fmt.Sprintf("%s to be open=%v", to, want), func(ctx context.Context) error {
			if err := ask(ctx, to); (err == nil) != want {
				return fmt.Errorf("it is not: %v", err)
			}
			return nil
		})
	}
	annotate := func(all ...string) {
		t.Helper()
		s.Kubectl(append([]string{"-n", "cattle-system", "annotate", "--overwrite", "service", "cattle-cluster-agent"}, all...)...)
	}
	const at, at6 = edge1 + ":6443", "[2001:db8:100::11]:6443"
	open(at, true) // without such a Service the port is not ours
	s.make(cattle)
	s.collected("edge1", " cattle-system/", "service cattle-system/cattle-cluster-agent TCP 443 nodePort 6443 NodePort ace closed")
	open(at, false)
	open(at6, false)
	h, err := s.Trial.Host("edge1")
	s.Check(err)
	for _, own := range []string{"127.0.0.1:6443", at} { // the device itself may
		conn, err := h.Dial(t.Context(), "tcp", own)
		s.Check(err)
		s.Check(conn.Close())
	}
	annotate("skerry.io/ace-source-cidrs=192.168.100.0/25", "skerry.io/ace-interface="+lan) // the client is .200
	s.waitRule("edge1", "-s 192.168.100.0/25 -i "+lan, true)
	open(at, false)
	annotate("skerry.io/ace-source-cidrs=192.168.100.128/25", "skerry.io/ace-interface=eth0")
	s.waitRule("edge1", "-s 192.168.100.128/25 -i eth0", true)
	open(at, false)
	annotate("skerry.io/ace-source-cidrs=192.168.100.128/25,2001:db8:100::/64", "skerry.io/ace-interface="+lan)
	open(at, true)
	open(at6, true)
	if mark, err := s.mark(t.Context(), "edge1", "tcp", at); err != nil || mark != 0 {
		t.Errorf("it is marked %d, %v", mark, err)
	}
	annotate("skerry.io/ace-source-cidrs=everywhere")
	open(at, false)
	s.WaitFor("edgecore's status to say so", func(ctx context.Context) error {
		m, err := s.status(ctx, "edge1")
		if err == nil && !strings.Contains(strings.Join(m.Problems, " "), `"everywhere" is no network`) {
			err = fmt.Errorf("it says %q", m.Problems)
		}
		return err
	})
	s.Kubectl("-n", "cattle-system", "delete", "service", "cattle-cluster-agent")
	open(at, true)
	s.waitRule("edge1", "SKERRY-ACE", false)
}

// The rules come before the containers, however often one looks.
func TestServices_09_BootOfflineRulesBeforePods(t *testing.T) {
	s := newSystem(t)
	s.make(exposed)
	s.WaitPods("sample", "app=sample", "edge1", 1)
	var before string
	s.WaitFor("the rules of both families", func(ctx context.Context) (err error) {
		if before, err = s.rules(ctx, "edge1"); err == nil && strings.Count(before, `"sample/web"`) != 4 {
			err = errors.New(before)
		}
		return err
	})
	s.Reboot("edge1", true)
	looked := 0
	s.WaitFor("the sample application to run again", func(ctx context.Context) error {
		running := len(s.Containers("edge1"))
		rules, err := s.rules(ctx, "edge1")
		if err != nil {
			return err
		}
		if running > 0 && !strings.Contains(rules, "30180") {
			s.T.Fatalf("%d containers run, and the rules are %q", running, rules)
		}
		if looked++; running < 2 { // its sandbox and itself
			return fmt.Errorf("%d containers run", running)
		}
		return nil
	})
	t.Logf("looked %d times", looked)
	if after, err := s.rules(t.Context(), "edge1"); err != nil || after != before {
		t.Errorf("the rules were\n%s\nand are\n%s\n%v", before, after, err)
	}
	if out := s.on("edge1", s.Root+"/bin/edgecore status -o json"); strings.Contains(out, `"linked": true`) || strings.Contains(out, `"linked":true`) {
		t.Error("it is linked")
	}
	s.listen("edge1", 30180)
	s.marked(24, "tcp", edge1+":30180")
}

// The example: answers of one Service leave by a second uplink. Another Service's don't.
func TestExample_anotherUplink(t *testing.T) {
	s := newSystem(t)
	// A second router, which counts the port's packets that it gets.
	const count = "ip netns exec uplink iptables -t raw "
	s.on("edge1", "ip netns add uplink && ip link add wan1 type veth peer name wan1 netns uplink && ip address add 172.31.7.2/24 dev wan1 && ip link set wan1 up && "+
		"ip -n uplink address add 172.31.7.1/24 dev wan1 && ip -n uplink link set wan1 up && "+count+"-A PREROUTING -s "+edge1+" -p tcp --sport 30090")
	example := filepath.Join(s.Root, "manifests", "examples", "services")
	t.Cleanup(func() {
		ctx := context.Background()
		_, _ = s.tryOn(ctx, "edge1", example+"/uplink.sh off; ip link del wan1; ip netns del uplink")
		s.Must(s.Run(ctx, "kubectl", "delete", "--ignore-not-found", "-k", example))
	})
	s.Kubectl("apply", "-k", example)
	s.waitRule("edge1", "30090", true)
	s.listen("edge1", 30090)
	s.listen("edge1", 30081)
	sent := func() (n int) {
		fields := strings.Fields(s.on("edge1", count+"-nvxL PREROUTING | tail -1"))
		_, err := fmt.Sscan(fields[0], &n)
		s.Check(err)
		return n
	}
	ask := func(port string) error {
		_, err := s.ask(t.Context(), "tcp", edge1+":"+port)
		return err
	}
	s.Check(ask("30090"))
	for range 2 { // twice is fine
		s.on("edge1", example+"/uplink.sh wan1 172.31.7.1")
	}
	s.Check(ask("30081")) // another port's answer stays
	if n := sent(); n != 0 {
		t.Errorf("the second router has got %d packets already", n)
	}
	if err := ask("30090"); err == nil { // the second router leads nowhere
		t.Error("the answer came by the LAN")
	}
	if sent() == 0 {
		t.Error("the second router has got no answer")
	}
	s.on("edge1", example+"/uplink.sh off")
	s.Check(ask("30090"))
}

// Off by default, and switching it off leaves no rules behind.
func TestOff(t *testing.T) {
	s := newSystem(t)
	s.make(exposed)
	s.waitRule("edge2", "30180", true)
	s.Check(s.Trial.Set(t.Context(), "edge2", []string{"modules.marks.enable=false"}))
	t.Cleanup(func() { s.Check(s.Trial.Set(context.Background(), "edge2", []string{"modules.marks.enable=true"})) })
	s.WaitFor("nothing to be left", func(ctx context.Context) error {
		rules, err := s.rules(ctx, "edge2")
		if err == nil && rules != "" {
			err = errors.New(rules)
		}
		return err
	})
	if _, err := s.status(t.Context(), "edge2"); err == nil {
		t.Error("its status has marks")
	}
}
