package site_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// deployment runs the sample application on a node, ready within a second and not ready within another.
func deployment(name, node string, replicas int) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[3]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 1
      nodeSelector: {kubernetes.io/hostname: %[2]s}
      tolerations: [{operator: Exists}]
      containers:
      - name: app
        image: skerry.local/sample:1
        imagePullPolicy: IfNotPresent
        env:
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, failureThreshold: 1}
---
`, name, node, replicas)
}

// service is one of the application of a name; more is added to its spec.
func service(name, app, more string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s}
spec:
  selector: {app: %s}
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: udp, port: 80, targetPort: 8080, protocol: UDP}
%s
---
`, name, app, more)
}

func (s *system) service(namespace, name string) *corev1.Service {
	s.T.Helper()
	v, err := s.Client.CoreV1().Services(namespace).Get(s.T.Context(), name, metav1.GetOptions{})
	s.Check(err)
	return v
}

// getFrom gets a URL from a host of the trial.
func (s *system) getFrom(ctx context.Context, host, target string) (string, error) {
	h, err := s.Trial.Host(host)
	if err != nil {
		return "", err
	}
	client := http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: h.Dial}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, http.NoBody)
	if err != nil {
		return "", err
	}
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, strings.TrimSpace(string(body)))
	}
	return string(body), err
}

// fetch has a pod get a URL: from inside, with its own resolver.
func (s *system) fetch(ctx context.Context, node, podIP, target string) (string, error) {
	return s.getFrom(ctx, node, "http://"+net.JoinHostPort(podIP, "8080")+"/fetch?url="+url.QueryEscape(target))
}

// podsOf are the names of the pods that answer at a URL that a pod fetches, as soon as they are exactly the wanted ones in n answers.
func (s *system) waitAnswers(what string, n int, want []string, ask func(context.Context) (string, error)) {
	s.T.Helper()
	slices.Sort(want)
	s.WaitFor(what, func(ctx context.Context) error {
		got := map[string]int{}
		for range n {
			name, err := ask(ctx)
			if err != nil {
				return err
			}
			got[name]++
		}
		if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, want) {
			return fmt.Errorf("%v answer, want %v", got, want)
		}
		return nil
	})
}

func names(pods []corev1.Pod) (out []string) {
	for _, p := range pods {
		out = append(out, p.Name)
	}
	return out
}

// udp asks an address by UDP from a host.
func (s *system) udp(ctx context.Context, host, address string) (string, error) {
	h, err := s.Trial.Host(host)
	if err != nil {
		return "", err
	}
	c, err := h.Dial(ctx, "udp", address)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := c.Write([]byte("who")); err != nil {
		return "", err
	}
	if err := c.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return "", err
	}
	b := make([]byte, 256)
	n, err := c.Read(b)
	return string(b[:n]), err
}

// ownPods are the ready pods of a device as its API has them, with the cloud and without it: those that were restarted as often (below ten times). After a
// reboot the API has what was before it until the kubelet reports.
func (s *system) ownPods(ctx context.Context, node, namespace, app string, restarts int) (map[string]string, error) {
	out, err := s.TryEdgeKubectl(ctx, node, "get", "pods", "-n", namespace, "-l", "app="+app,
		"-o", `jsonpath={range .items[*]}{.metadata.name} {.status.podIP} {.status.conditions[?(@.type=="Ready")].status} {.status.containerStatuses[0].restartCount}{"\n"}{end}`)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 4 && f[2] == "True" && f[3] >= strconv.Itoa(restarts) {
			all[f[0]] = f[1]
		}
	}
	return all, nil
}

// ClusterIPs over TCP and UDP, a NodePort on the LAN and on the node, a pod that reaches itself by its Service, and session affinity: served by edgecore.
func TestSite_01_ServicesOnADevice(t *testing.T) {
	s := use(t)
	ns := s.Namespace()
	s.Apply(ns, deployment("front", "edge1", 1)+deployment("store", "edge1", 2)+deployment("one", "edge1", 1)+
		service("store", "store", "")+service("node", "store", "  type: NodePort")+service("one", "one", "")+
		service("sticky", "store", "  sessionAffinity: ClientIP"))
	front := s.WaitPods(ns, "app=front", "edge1", 1)[0].Status.PodIP
	store := names(s.WaitPods(ns, "app=store", "edge1", 2))
	one := s.WaitPods(ns, "app=one", "edge1", 1)[0]
	ip := func(name string) string { return s.service(ns, name).Spec.ClusterIP }
	ask := func(target string) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			return s.fetch(ctx, "edge1", front, "http://"+target+"/name")
		}
	}
	s.waitAnswers("both pods behind the ClusterIP", 20, store, ask(ip("store")))
	s.waitAnswers("both pods over UDP", 20, store, func(ctx context.Context) (string, error) { return s.udp(ctx, "edge1", ip("store")+":80") })
	s.waitAnswers("both pods by name", 20, store, ask("store"))
	s.waitAnswers("itself, by its own Service", 3, []string{one.Name}, func(ctx context.Context) (string, error) {
		return s.fetch(ctx, "edge1", one.Status.PodIP, "http://"+ip("one")+"/name")
	})
	port := s.service(ns, "node").Spec.Ports[0].NodePort
	lan := fmt.Sprintf("http://%s/name", net.JoinHostPort(lab.LAN(1).Addr().String(), fmt.Sprint(port)))
	s.waitAnswers("both pods at the NodePort, from the LAN", 20, store, func(ctx context.Context) (string, error) { return s.getFrom(ctx, trial.Client, lan) })
	node, err := s.Client.CoreV1().Nodes().Get(t.Context(), "edge1", metav1.GetOptions{})
	s.Check(err)
	s.waitAnswers("both pods at the NodePort, at the node's address", 20, store, ask(net.JoinHostPort(node.Status.Addresses[0].Address, fmt.Sprint(port))))

	sticky := map[string]bool{}
	for range 20 {
		name, err := ask(ip("sticky"))(t.Context())
		s.Check(err)
		sticky[name] = true
	}
	if len(sticky) != 1 {
		t.Errorf("one client was answered by %v in spite of its affinity", sticky)
	}
}

// All that goes on without the cloud, and readiness too, which nobody can tell the cloud.
func TestSite_02_Cut(t *testing.T) {
	s := use(t)
	ns := s.Namespace()
	s.Apply(ns, deployment("front", "edge1", 1)+deployment("store", "edge1", 2)+service("store", "store", ""))
	front := s.WaitPods(ns, "app=front", "edge1", 1)[0].Status.PodIP
	pods := s.WaitPods(ns, "app=store", "edge1", 2)
	byName := func(ctx context.Context) (string, error) { return s.fetch(ctx, "edge1", front, "http://store/name") }
	s.waitAnswers("both pods by name", 20, names(pods), byName)
	s.Cut("edge1")
	s.WaitReady("edge1", false)
	s.waitAnswers("both pods by name, without the cloud", 20, names(pods), byName)
	_, err := s.getFrom(t.Context(), "edge1", "http://"+pods[0].Status.PodIP+":8080/healthz")
	s.Check(err)
	s.post("edge1", pods[0].Status.PodIP, "/fail")
	s.waitAnswers("the ready pod alone", 20, names(pods[1:]), byName)
	s.post("edge1", pods[0].Status.PodIP, "/heal")
	s.waitAnswers("both pods again", 20, names(pods), byName)
	s.Heal("edge1")
	s.WaitReady("edge1", true)
	s.waitAnswers("both pods, with the cloud again", 20, names(pods), byName)
}

func (s *system) post(node, podIP, path string) {
	s.T.Helper()
	h, err := s.Trial.Host(node)
	s.Check(err)
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: h.Dial}}
	req, err := http.NewRequestWithContext(s.T.Context(), http.MethodPost, "http://"+net.JoinHostPort(podIP, "8080")+path, http.NoBody)
	s.Check(err)
	res, err := client.Do(req)
	s.Check(err)
	s.Check(res.Body.Close())
}

// A power cut while the cloud is away: pods come back with other addresses, which nobody can tell the cloud. Service and headless name follow.
func TestSite_03_RebootOffline(t *testing.T) {
	s := use(t)
	ns := s.Namespace()
	// Addresses are given in turn and anew with each boot. These take the first ones and go before it: nobody gets the address then that it had.
	s.Apply(ns, deployment("first", "edge1", 4))
	s.WaitPods(ns, "app=first", "edge1", 4)
	s.Apply(ns, deployment("front", "edge1", 1)+deployment("store", "edge1", 2)+service("store", "store", "")+service("each", "store", "  clusterIP: None"))
	s.WaitPods(ns, "app=front", "edge1", 1)
	pods := s.WaitPods(ns, "app=store", "edge1", 2)
	before := []string{pods[0].Status.PodIP, pods[1].Status.PodIP}
	s.Kubectl("delete", "deployment", "first", "-n", ns)
	s.WaitPods(ns, "app=first", "edge1", 0)
	s.WaitFor("the headless name", func(ctx context.Context) error {
		return s.lookUp(ctx, "edge1", "each."+ns+".svc.cluster.local.", before)
	})
	s.Cut("edge1")
	s.WaitReady("edge1", false)
	s.WaitFor("the device to have no other pods", func(ctx context.Context) error {
		all, err := s.ownPods(ctx, "edge1", ns, "first", 0)
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("it has %v", all)
		}
		return err
	})
	s.Reboot("edge1", true)
	var now map[string]string
	s.WaitFor("the pods, after the reboot", func(ctx context.Context) error {
		var err error
		if now, err = s.ownPods(ctx, "edge1", ns, "store", 1); err == nil && len(now) != 2 {
			err = fmt.Errorf("%v are ready", now)
		}
		return err
	})
	addresses := slices.Collect(maps.Values(now))
	for _, a := range addresses {
		if slices.Contains(before, a) {
			t.Fatalf("a pod has the address that it had: %v, before %v; the test shows nothing", addresses, before)
		}
	}
	s.WaitFor("the headless name, with the addresses of this boot", func(ctx context.Context) error {
		return s.lookUp(ctx, "edge1", "each."+ns+".svc.cluster.local.", addresses)
	})
	var front string
	s.WaitFor("the front, after the reboot", func(ctx context.Context) error {
		all, err := s.ownPods(ctx, "edge1", ns, "front", 1)
		for _, front = range all {
			return nil
		}
		return errors.Join(err, errors.New("it is not ready"))
	})
	s.waitAnswers("both pods by name, after the reboot", 20, slices.Collect(maps.Keys(now)), func(ctx context.Context) (string, error) {
		return s.fetch(ctx, "edge1", front, "http://store/name")
	})
	s.Heal("edge1")
	s.WaitReady("edge1", true)
}

// A Service whose endpoints are all gone or unready is refused at once, on TCP, by ClusterIP and NodePort.
func TestSite_17_NoEndpoint(t *testing.T) {
	s := use(t)
	ns := s.Namespace()
	s.Apply(ns, deployment("store", "edge1", 1)+service("store", "store", "  type: NodePort")+service("nobody", "nobody", ""))
	pod := s.WaitPods(ns, "app=store", "edge1", 1)[0]
	store := s.service(ns, "store")
	targets := []string{store.Spec.ClusterIP + ":80", net.JoinHostPort(lab.LAN(1).Addr().String(), fmt.Sprint(store.Spec.Ports[0].NodePort))}
	for _, target := range targets {
		s.waitAnswers("the pod at "+target, 3, []string{pod.Name}, func(ctx context.Context) (string, error) {
			return s.getFrom(ctx, "edge1", "http://"+target+"/name")
		})
	}
	s.post("edge1", pod.Status.PodIP, "/fail")
	h, err := s.Trial.Host("edge1")
	s.Check(err)
	for _, target := range append(targets, s.service(ns, "nobody").Spec.ClusterIP+":80") {
		s.WaitFor(target+" to refuse", func(ctx context.Context) error {
			c, err := h.Dial(ctx, "tcp", target)
			if err == nil {
				return errors.Join(errors.New("it connects"), c.Close())
			}
			if !errors.Is(err, syscall.ECONNREFUSED) {
				return err
			}
			return nil
		})
	}
}

// rules reports whether rules of Services are in a device's kernel.
func (s *system) rules(ctx context.Context, node string) (bool, error) {
	var out strings.Builder
	code, err := s.Trial.Exec(ctx, node, trial.Streams{Out: &out, Err: &out}, nil, "nft", "list", "tables")
	if err == nil && code != 0 {
		err = errors.New(out.String())
	}
	return strings.Contains(out.String(), "table ip kube-proxy"), err
}

const kubeProxy = `apiVersion: v1
kind: Pod
metadata: {name: kube-proxy-x, labels: {k8s-app: kube-proxy}}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  nodeName: edge1
  tolerations: [{operator: Exists}]
  containers:
  - {name: kube-proxy, image: "skerry.local/sample:1", imagePullPolicy: IfNotPresent, env: [{name: LISTEN, value: "127.0.0.1:18080"}]}
`

// A kube-proxy pod comes to the device, as a DaemonSet brings it: edgecore's rules make room, it stays off after that, says so, and comes back when the pod has gone.
// The pod is one by its label and container; what it does in the kernel is its own business and not shown here.
func TestSite_29_KubeProxyThere(t *testing.T) {
	s := use(t)
	ns := s.Namespace()
	s.Apply(ns, deployment("store", "edge1", 1)+service("store", "store", ""))
	pod := s.WaitPods(ns, "app=store", "edge1", 1)[0]
	served := func(ctx context.Context) (string, error) {
		return s.getFrom(ctx, "edge1", "http://"+s.service(ns, "store").Spec.ClusterIP+"/name")
	}
	s.waitAnswers("the Service", 3, []string{pod.Name}, served)
	status := func(ctx context.Context) string {
		var out strings.Builder
		_, err := s.Trial.Exec(ctx, "edge1", trial.Streams{Out: &out, Err: io.Discard}, nil, filepath.Join(s.Root, "bin", "edgecore"), "status", "-o", "json")
		s.Check(err)
		return out.String()
	}
	s.Apply(ns, kubeProxy)
	s.WaitFor("the rules to make room, and edgecore to say so", func(ctx context.Context) error {
		there, err := s.rules(ctx, "edge1")
		if err != nil || there {
			return errors.Join(err, errors.New("rules are there"))
		}
		if err := s.Trial.Start(ctx, "edge1", "edgecore"); err != nil { // as systemd does
			return err
		}
		if text := status(ctx); !strings.Contains(text, "off: the pod "+ns+"/kube-proxy-x") {
			return errors.New("it does not say so")
		}
		return nil
	})
	if there, err := s.rules(t.Context(), "edge1"); err != nil || there {
		t.Errorf("rules are there beside a kube-proxy pod: %v", err)
	}
	s.Kubectl("delete", "pod", "kube-proxy-x", "-n", ns)
	s.waitAnswers("the Service, once the pod has gone", 3, []string{pod.Name}, served)
	if text := status(t.Context()); strings.Contains(text, "off: the pod") {
		t.Error("it still says that it is off")
	}
}
