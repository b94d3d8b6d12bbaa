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
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// deployment runs the sample application on a node, ready within a second and not ready
// within another.
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

// waitAnswers waits until the wanted pods, and no others, have answered in n requests.
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

// ClusterIPs over TCP and UDP, a NodePort on the LAN and on the node, a pod that reaches itself by
// its Service, and session affinity: served by edgecore.
func TestSite_01_EdgecoreServesClusterIPsAndNodePorts(t *testing.T) {
	s := newSystem(t)
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

// All of it works without the cloud, and readiness too, which can't be reported to the cloud.
func TestSite_02_ServicesAndReadinessGoOnWhileCut(t *testing.T) {
	s := newSystem(t)
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

// A Service whose endpoints are all gone or unready is refused at once, on TCP, by
// ClusterIP and NodePort.
func TestSite_17_NoEndpointIsRefusedAtOnce(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.Apply(ns, deployment("store", "edge1", 1)+service("store", "store", "  type: NodePort")+service("empty", "none", ""))
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
	for _, target := range append(targets, s.service(ns, "empty").Spec.ClusterIP+":80") {
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
