package lan_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// service makes a Service of the sample pods and returns its ClusterIP.
func (s *system) service(name string, edit ...func(*corev1.Service)) string {
	s.T.Helper()
	services := s.Client.CoreV1().Services(namespace)
	v := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	for _, f := range edit {
		f(v)
	}
	made, err := services.Create(s.T.Context(), v, metav1.CreateOptions{})
	s.Check(err)
	s.T.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = services.Delete(ctx, name, metav1.DeleteOptions{})
	})
	return made.Spec.ClusterIP
}

// once asks the Service from a node, and returns the pod that answers.
func (s *system) once(ctx context.Context, node, address string) (string, error) {
	h, err := s.Trial.Host(node)
	if err != nil {
		return "", err
	}
	client := http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: h.Dial}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(address, "80")+"/", http.NoBody)
	if err != nil {
		return "", err
	}
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	var pod, where string
	if _, err := fmt.Fscanf(answer.Body, "pod %s on node %s", &pod, &where); err != nil {
		return "", err
	}
	return pod, nil
}

// rounds is more than enough for each of three pods to be chosen at random: one is left out of 40
// with a chance of (2/3)^40, 1 in 10 million.
const rounds = 40

// behind are the pods that answer a node's connections, all of which must succeed.
func (s *system) behind(ctx context.Context, node, address string) ([]string, error) {
	seen := map[string]bool{}
	for range rounds {
		pod, err := s.once(ctx, node, address)
		if err != nil {
			return nil, err
		}
		seen[pod] = true
	}
	return slices.Sorted(maps.Keys(seen)), nil
}

// served waits until exactly these pods answer a node, and no connection fails.
func (s *system) served(node, address string, want ...string) {
	s.T.Helper()
	s.WaitFor(fmt.Sprintf("%s to be served by %v", node, want), func(ctx context.Context) error {
		have, err := s.behind(ctx, node, address)
		if err == nil && !slices.Equal(have, want) {
			err = fmt.Errorf("it is served by %v", have)
		}
		return err
	})
}

// web is a Service with a pod on each of the three edges.
func (s *system) web() (address string, pods map[string]corev1.Pod) {
	s.T.Helper()
	named := func(p *corev1.Pod) {
		p.Spec.Containers[0].Env = []corev1.EnvVar{
			{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
			{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
		}
	}
	address = s.service("web")
	pods = map[string]corev1.Pod{}
	for _, node := range []string{"edge1", "edge2", "edge3"} {
		pods[node] = s.pod("on-"+node, node, named)
	}
	for _, node := range []string{"edge1", "edge2", "edge3"} {
		s.served(node, address, "on-edge1", "on-edge2", "on-edge3")
	}
	return address, pods
}

func (s *system) cutAll() {
	s.T.Helper()
	for _, node := range []string{"edge1", "edge2", "edge3"} {
		s.Cut(node)
	}
}

// The site is cut off, and one of its devices loses its power: the others' Services do without its
// pod, and have it again when it returns, without a report from the cloud.
func TestSite_05_PeerPoweredOffLeavesServices(t *testing.T) {
	s := newSystem(t)
	address, _ := s.web()
	s.cutAll()
	s.served("edge1", address, "on-edge1", "on-edge2", "on-edge3")
	s.Check(s.Trial.PowerOff(t.Context(), "edge3"))
	s.served("edge1", address, "on-edge1", "on-edge2")
	s.served("edge2", address, "on-edge1", "on-edge2")
}

// It returns, still without the cloud: its pods have new addresses, which only its own kubelet has.
func TestSite_06_PeerReturnsWithNewAddresses(t *testing.T) {
	s := newSystem(t)
	address, _ := s.web()
	s.cutAll()
	s.Reboot("edge3", true)
	s.served("edge1", address, "on-edge1", "on-edge2", "on-edge3")
	s.served("edge2", address, "on-edge1", "on-edge2", "on-edge3")
	s.served("edge3", address, "on-edge1", "on-edge2", "on-edge3")
}

// edgecore is killed on a device: its pods are up, and are still used by all, without one failed
// connection.
func TestSite_08_EdgecoreKilledOnAPeerChangesNothing(t *testing.T) {
	s := newSystem(t)
	address, _ := s.web()
	s.cutAll()
	s.served("edge1", address, "on-edge1", "on-edge2", "on-edge3")
	s.Kill("edge3", "edgecore")
	seen := map[string]int{}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		pod, err := s.once(t.Context(), "edge1", address)
		if err != nil {
			t.Fatalf("while edgecore is dead on edge3: %v", err)
		}
		seen[pod]++
	}
	if len(seen) != 3 || seen["on-edge3"] == 0 {
		t.Errorf("while edgecore is dead on edge3, answers came from %v", seen)
	}
	s.Start("edge3", "edgecore")
	s.served("edge1", address, "on-edge1", "on-edge2", "on-edge3")
}

// A pod becomes unready while the site is cut off: it leaves the Services of all devices,
// and comes back.
func TestSite_09_UnreadySeenByPeers(t *testing.T) {
	s := newSystem(t)
	address, pods := s.web()
	s.cutAll()
	post := func(path string) {
		t.Helper()
		p := pods["edge2"]
		_ = s.in(p, "curl -sf -m 5 -X POST http://"+p.Status.PodIP+":8080"+path)
	}
	post("/fail")
	for _, node := range []string{"edge1", "edge2", "edge3"} {
		s.served(node, address, "on-edge1", "on-edge3")
	}
	post("/heal")
	for _, node := range []string{"edge1", "edge2", "edge3"} {
		s.served(node, address, "on-edge1", "on-edge2", "on-edge3")
	}
}

// One device has a link, by which the cloud reports that the others are NotReady: their own reports
// on the LAN win. At heal there is no flip, and no connection fails.
func TestSite_12_DevicesOwnReportsWin(t *testing.T) { oneLinked(t, func(*system, string) {}) }

// TestSite_13_HealWithoutFlips: see TestSite_12_DevicesOwnReportsWin; here the cloud comes back for
// all while clients continue.
func TestSite_13_HealWithoutFlips(t *testing.T) {
	oneLinked(t, func(s *system, address string) {
		s.Heal("edge2")
		s.Heal("edge3")
		seen := map[string]map[string]int{"edge1": {}, "edge2": {}}
		steady := func() {
			for node, by := range seen {
				pod, err := s.once(t.Context(), node, address)
				if err != nil {
					t.Fatalf("at heal a connection of %s failed: %v", node, err)
				}
				by[pod]++
			}
		}
		for _, node := range []string{"edge2", "edge3"} {
			for ready := false; !ready; {
				steady()
				n, err := s.Client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
				s.Check(err)
				for _, c := range n.Status.Conditions {
					ready = ready || c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
				}
			}
		}
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
			steady()
		}
		for node, by := range seen {
			if len(by) != 3 {
				t.Errorf("at heal %s was served by %v", node, by)
			}
		}
	})
}

func oneLinked(t *testing.T, then func(s *system, address string)) {
	s := newSystem(t)
	address, _ := s.web()
	s.Cut("edge2")
	s.Cut("edge3")
	s.WaitReady("edge2", false)
	s.WaitReady("edge3", false)
	// The cloud's slices have it too, and that has come down to edge1.
	s.WaitFor("the cloud to take two pods out", func(ctx context.Context) error {
		all, err := s.Client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web"})
		if err != nil {
			return err
		}
		out := 0
		for _, x := range all.Items {
			for _, e := range x.Endpoints {
				if e.Conditions.Ready != nil && !*e.Conditions.Ready {
					out++
				}
			}
		}
		if out != 2 {
			return fmt.Errorf("%d are out", out)
		}
		return nil
	})
	for _, node := range []string{"edge1", "edge2", "edge3"} {
		s.served(node, address, "on-edge1", "on-edge2", "on-edge3")
	}
	then(s, address)
}

// A pod is deleted in the cloud while its device is cut off: the site continues to use it, and at
// heal it goes.
func TestSite_14_PodDeletedWhileCutGoesAtHeal(t *testing.T) {
	s := newSystem(t)
	address, _ := s.web()
	s.cutAll()
	s.Check(s.Client.CoreV1().Pods(namespace).Delete(t.Context(), "on-edge3", metav1.DeleteOptions{}))
	s.served("edge1", address, "on-edge1", "on-edge2", "on-edge3")
	for _, node := range []string{"edge1", "edge2", "edge3"} {
		s.Heal(node)
	}
	for _, node := range []string{"edge1", "edge2", "edge3"} {
		s.served(node, address, "on-edge1", "on-edge2")
	}
}

// The power of the whole site goes while it is cut off, and comes back: all of it works as before,
// with addresses that no cloud has.
func TestSite_04_WholeSiteRebootsOfflineAndServes(t *testing.T) {
	s := newSystem(t)
	address, _ := s.web()
	s.cutAll()
	for _, node := range []string{"edge1", "edge2", "edge3"} {
		s.Check(s.Trial.PowerOff(t.Context(), node))
	}
	for _, node := range []string{"edge1", "edge2", "edge3"} {
		s.Reboot(node, true)
	}
	for _, node := range []string{"edge1", "edge2", "edge3"} {
		s.served(node, address, "on-edge1", "on-edge2", "on-edge3")
	}
}

// A client holds a connection through a Service to a pod whose device loses its power, as one of
// MQTT does for days: it gets a reset, and does not wait for a time-out of TCP.
func TestSite_15_ConnectionToDeadPeerIsReset(t *testing.T) {
	s := newSystem(t)
	address, _ := s.web()
	s.cutAll()
	h, err := s.Trial.Host("edge1")
	s.Check(err)
	const request = "GET / HTTP/1.1\r\nHost: web\r\n\r\n"
	var conn net.Conn
	s.WaitFor("a connection to the pod on edge3", func(ctx context.Context) error {
		c, err := h.Dial(ctx, "tcp", net.JoinHostPort(address, "80"))
		if err != nil {
			return err
		}
		s.Check(c.SetDeadline(time.Now().Add(5 * time.Second)))
		if _, err := io.WriteString(c, request); err != nil {
			return err
		}
		buffer := make([]byte, 4096)
		n, err := c.Read(buffer)
		if err == nil && !strings.Contains(string(buffer[:n]), "on-edge3") {
			err = errors.New("another pod answers")
		}
		if err != nil {
			c.Close()
			return err
		}
		conn = c
		return nil
	})
	defer conn.Close()
	// The LAN's cable first: a trial cuts the power by killing, and the kernel closes the
	// connections of a killed process, which no power cut does.
	s.Must(s.shell(t.Context(), "edge3", "ip link set lan0 down"))
	s.Check(s.Trial.PowerOff(t.Context(), "edge3"))
	s.Check(conn.SetDeadline(time.Time{}))
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, conn)
		ended <- err
	}()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	// Only a sent packet can be answered, and Linux waits up to 2 min before it sends again
	// (TCP_RTO_MAX; RFC 6298, 2.5, lets it be anything from 1 min).
	for over := time.After(5 * time.Minute); ; {
		select {
		case err := <-ended:
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the connection ended with %v, want a reset", err)
			}
			return
		case <-over:
			t.Fatal("the client waits for a time-out")
		case <-tick.C:
			_, _ = io.WriteString(conn, request) // as a keepalive of MQTT; its end is seen by the reader
		}
	}
}

// A device goes to another pool: it is in another site then, and comes back.
func TestSite_31_PoolChangedIsAnotherSite(t *testing.T) {
	s := newSystem(t)
	_, _ = s.web()
	route := func(want bool) {
		t.Helper()
		n, err := s.Client.CoreV1().Nodes().Get(t.Context(), "edge3", metav1.GetOptions{})
		s.Check(err)
		s.WaitFor(fmt.Sprintf("edge1 to have a route to the pods of edge3: %v", want), func(ctx context.Context) error {
			out, err := s.shell(ctx, "edge1", "ip route show proto 159")
			if err == nil && strings.Contains(out, n.Spec.PodCIDR) != want {
				err = errors.New(out)
			}
			return err
		})
	}
	route(true)
	s.label("edge3", "elsewhere")
	route(false)
	s.label("edge3", trial.Pool)
	route(true)
}

// A hostPort leads from the LAN to the pod, with the cloud and without it.
func TestSite_24_HostPortLeadsToThePod(t *testing.T) {
	s := newSystem(t)
	s.pod("published", "edge2", func(p *corev1.Pod) {
		p.Labels = nil
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080, HostPort: 18080}}
	})
	h, err := s.Trial.Host(trial.Client)
	s.Check(err)
	ask := func(when string) {
		t.Helper()
		s.WaitFor(when+": the hostPort to answer", func(ctx context.Context) error {
			client := http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: h.Dial}}
			answer, err := client.Get("http://" + net.JoinHostPort(lab.LAN(2).Addr().String(), "18080") + "/healthz")
			if err != nil {
				return err
			}
			defer answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				return errors.New(answer.Status)
			}
			return nil
		})
	}
	ask("with the cloud")
	s.Cut("edge2")
	ask("without it")
}
