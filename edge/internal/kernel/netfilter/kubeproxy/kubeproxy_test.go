package kubeproxy_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/kubeproxy"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lantest"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// proxyMode marks the process that is a proxy: one can't be stopped, and its child processes must
// be in the network of its host.
const proxyMode = "SKERRY_TEST_PROXY_MODE"

func TestMain(m *testing.M) {
	if mode := os.Getenv(proxyMode); mode != "" {
		if err := serve(mode, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// change is a line of the proxy's input: each has the new state of one of the two.
type change struct {
	Service *corev1.Service
	Slice   *discoveryv1.EndpointSlice
}

// serve is the proxy's process. "clear" removes the rules; the end of its input ends it, with the
// rules in place.
func serve(mode string, in io.Reader, out io.Writer) error {
	d := kubeproxy.New(mode, "device")
	p, chosen, err := d.Open(context.Background())
	if err != nil {
		return err
	}
	fmt.Fprintln(out, chosen)
	p.OnServiceSynced()
	p.OnEndpointSlicesSynced()
	go p.SyncLoop()
	var service *corev1.Service
	var slice *discoveryv1.EndpointSlice
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if lines.Text() == "clear" {
			return d.Clear(context.Background())
		}
		var c change
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return err
		}
		switch {
		case c.Service != nil && service == nil:
			p.OnServiceAdd(c.Service)
		case c.Service != nil:
			p.OnServiceUpdate(service, c.Service)
		case slice == nil:
			p.OnEndpointSliceAdd(c.Slice)
		default:
			p.OnEndpointSliceUpdate(slice, c.Slice)
		}
		if c.Service != nil {
			service = c.Service
		} else {
			slice = c.Slice
		}
	}
	return lines.Err()
}

const (
	clusterIP = "10.96.0.10"
	device    = "192.0.2.1"
	nodePort  = 30100
)

func web(edit func(*corev1.ServiceSpec)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, ClusterIP: clusterIP, ClusterIPs: []string{clusterIP}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			SessionAffinity: corev1.ServiceAffinityNone, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
		},
	}
	for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
			Name: strings.ToLower(string(protocol)), Protocol: protocol, Port: 80, TargetPort: intstr.FromInt32(8080), NodePort: nodePort,
		})
	}
	if edit != nil {
		edit(&s.Spec)
	}
	return s
}

func slice(addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		name, port := strings.ToLower(string(protocol)), int32(8080)
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &port})
	}
	for _, a := range addresses {
		ready, node := true, "device" // a pod that reaches itself by its Service must be of this node
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready}})
	}
	return s
}

// Both modes forward ClusterIPs and NodePorts to endpoints, over TCP and UDP, from the device, its
// pods and the LAN; follow a change; refuse where there is no endpoint; keep a client's endpoint;
// serve on while the process is gone; and leave no rules when they are cleared.
func TestModes(t *testing.T) {
	for _, mode := range []string{kubeproxy.NFTables, kubeproxy.IPTables} {
		t.Run(mode, func(t *testing.T) { testMode(t, mode) })
	}
}

func testMode(t *testing.T, mode string) {
	lan := lantest.New(t)
	host, client := lan.Host(device+"/24"), lan.Host("192.0.2.9/24")
	pods := map[string]*lantest.Host{}
	for _, a := range []string{"10.88.0.2", "10.88.0.3"} {
		pods[a] = host.Pod(netip.MustParseAddr(a))
		pods[a].Serve(8080, a)
	}
	asker := host.Pod(netip.MustParseAddr("10.88.0.4"))
	host.Shell("ip route add default dev lan0") // packets without a route are not translated

	p := start(t, host, mode)
	p.tell(change{Service: web(nil)})
	p.tell(change{Slice: slice("10.88.0.2", "10.88.0.3")})
	at := func(port int, a string) string { return fmt.Sprintf("%s:%d", a, port) }
	both := []string{"10.88.0.2", "10.88.0.3"}
	everywhere := func(want ...string) {
		t.Helper()
		for _, network := range []string{"tcp", "udp"} {
			answered(t, asker, network, at(80, clusterIP), want...)
			answered(t, host, network, at(80, clusterIP), want...)
			answered(t, client, network, at(nodePort, device), want...)
		}
	}
	everywhere(both...)
	answered(t, pods["10.88.0.2"], "tcp", at(80, clusterIP), both...) // itself too
	p.tell(change{Slice: slice("10.88.0.3")})
	everywhere("10.88.0.3")

	p.tell(change{Slice: slice()})
	for from, target := range map[*lantest.Host]string{asker: at(80, clusterIP), client: at(nodePort, device)} {
		poll.Eventually(t, target+" to refuse", func(context.Context) error {
			_, _, err := from.Ask("tcp", target, 5*time.Second)
			if !errors.Is(err, syscall.ECONNREFUSED) {
				return fmt.Errorf("it is %w", err)
			}
			return nil
		})
	}

	seconds := int32(600)
	p.tell(change{Slice: slice("10.88.0.2", "10.88.0.3")})
	everywhere(both...)
	p.tell(change{Service: web(func(s *corev1.ServiceSpec) {
		s.SessionAffinity = corev1.ServiceAffinityClientIP
		s.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	})})
	poll.Eventually(t, "one endpoint for a client", func(context.Context) error {
		if seen, err := ask(asker, "tcp", at(80, clusterIP)); err != nil || len(seen) != 1 {
			return fmt.Errorf("answers come from %v: %w", seen, err)
		}
		return nil
	})

	// The process ends, its rules serve on; and go when it is switched off.
	p.end("")
	if seen, err := ask(client, "tcp", at(nodePort, device)); err != nil || len(seen) != 1 {
		t.Errorf("without its process: %v, %v", seen, err)
	}
	start(t, host, mode).end("clear")
	rules := host.Shell("nft list ruleset; iptables-save")
	for _, word := range []string{clusterIP, "KUBE-SVC", "table ip kube-proxy"} {
		if strings.Contains(rules, word) {
			t.Errorf("%s is left:\n%s", word, rules)
		}
	}
}

// answered waits until exactly these answer.
func answered(t *testing.T, from *lantest.Host, network, target string, want ...string) {
	t.Helper()
	poll.Eventually(t, fmt.Sprintf("%s %s to be answered by %v", network, target, want), func(context.Context) error {
		seen, err := ask(from, network, target)
		if err == nil && !slices.Equal(seen, want) {
			err = fmt.Errorf("answers come from %v", seen)
		}
		return err
	})
}

// rounds is enough for one of two to be chosen at least once: it is not in 30 with a
// chance of 1 in 10^9.
const rounds = 30

func ask(from *lantest.Host, network, target string) ([]string, error) {
	seen := map[string]bool{}
	for range rounds {
		word, _, err := from.Ask(network, target, 2*time.Second)
		if err != nil {
			return nil, err
		}
		seen[word] = true
	}
	return slices.Sorted(maps.Keys(seen)), nil
}

// proxy is a process that is one.
type proxy struct {
	t    *testing.T
	in   io.WriteCloser
	wait func() error
}

func start(t *testing.T, host *lantest.Host, mode string) *proxy {
	t.Helper()
	cmd := host.Command(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), proxyMode+"="+mode)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != mode {
		_ = in.Close()
		t.Fatalf("the proxy says %q, want %s: %v %v\n%s", line, mode, err, cmd.Wait(), log.String())
	}
	return &proxy{t: t, in: in, wait: func() error {
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("%w\n%s", err, log.String())
		}
		return nil
	}}
}

func (p *proxy) tell(c change) {
	p.t.Helper()
	raw, err := json.Marshal(c)
	if err == nil {
		_, err = p.in.Write(append(raw, '\n'))
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// end ends the process, with a last word.
func (p *proxy) end(word string) {
	p.t.Helper()
	_, err := io.WriteString(p.in, word+strings.Repeat("\n", min(len(word), 1)))
	if err := errors.Join(err, p.in.Close(), p.wait()); err != nil {
		p.t.Fatal(err)
	}
}
