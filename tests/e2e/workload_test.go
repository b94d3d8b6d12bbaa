package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/suite"
)

// ask sends a request to the sample application in a pod, from the pod's node.
func (s *system) ask(ctx context.Context, method string, pod corev1.Pod, path string) error {
	h, err := s.Trial.Host(pod.Spec.NodeName)
	if err != nil {
		return err
	}
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: h.Dial}}
	request, err := http.NewRequestWithContext(ctx, method, "http://"+net.JoinHostPort(pod.Status.PodIP, "8080")+path, http.NoBody)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	if err := answer.Body.Close(); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, path, answer.Status)
	}
	return nil
}

// edgecoreStatus has the fields of `edgecore status -o json` on a device that a script reads.
func (s *system) edgecoreStatus(ctx context.Context, node string) (st struct {
	Running bool
	Kubelet string
	Link    struct {
		Linked    bool
		Transport string
	}
}, err error) {
	err = s.EdgeStatus(ctx, node, &st)
	return st, err
}

// restarts is how often the containers of a pod were restarted.
func restarts(p corev1.Pod) (n int32) {
	for _, c := range p.Status.ContainerStatuses {
		n += c.RestartCount
	}
	return n
}

const deployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata:
      labels: {app: web}
      annotations: {version: "1"}
    spec:
      dnsPolicy: Default
      terminationGracePeriodSeconds: 1
      containers:
      - {name: sample, image: skerry.local/sample:1, imagePullPolicy: IfNotPresent}
`

func TestDeployment(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.Apply(ns, deployment)
	s.Kubectl("rollout", "status", "-n", ns, "deployment/web", "--timeout=2m")
	s.Kubectl("scale", "-n", ns, "deployment/web", "--replicas=4")
	s.WaitPods(ns, "app=web", "", 4)
	before := s.WaitPods(ns, "app=web", "", 4)
	s.Apply(ns, strings.NewReplacer(`version: "1"`, `version: "2"`, "replicas: 2", "replicas: 4").Replace(deployment))
	s.Kubectl("rollout", "status", "-n", ns, "deployment/web", "--timeout=2m")
	s.WaitFor("the old pods to go", func(ctx context.Context) error {
		for _, p := range before {
			if _, err := s.Client.CoreV1().Pods(ns).Get(ctx, p.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s is still there: %w", p.Name, err)
			}
		}
		return nil
	})
	s.WaitPods(ns, "app=web", "", 4)
	s.Kubectl("delete", "-n", ns, "deployment/web")
	s.WaitPods(ns, "app=web", "", 0)
}

func TestDaemonSetAndJob(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.Apply(ns, strings.NewReplacer("kind: Deployment", "kind: DaemonSet", "  replicas: 2\n", "").Replace(deployment))
	pods := s.WaitPods(ns, "app=web", "", 2)
	if pods[0].Spec.NodeName == pods[1].Spec.NodeName {
		t.Errorf("both pods are on %s", pods[0].Spec.NodeName)
	}
	s.Apply(ns, fmt.Sprintf(`apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec:
  template:
    spec:
      restartPolicy: Never
      dnsPolicy: Default
      nodeSelector: {kubernetes.io/hostname: %s}
      containers:
      - {name: sample, image: skerry.local/sample:1, imagePullPolicy: IfNotPresent, args: [get, "http://%s:8080/"]}
`, pods[0].Spec.NodeName, pods[0].Status.PodIP))
	s.Kubectl("wait", "-n", ns, "job/once", "--for=condition=Complete", "--timeout=2m")
}

func TestFailingProbeRestarts(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.Apply(ns, samplePod("probed", "edge1")+"    livenessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, failureThreshold: 2}\n")
	pod := s.WaitPods(ns, "app=probed", "edge1", 1)[0]
	s.Check(s.ask(t.Context(), http.MethodPost, pod, "/fail"))
	s.WaitFor("a restart, reported to the cloud", func(ctx context.Context) error {
		p, err := s.Client.CoreV1().Pods(ns).Get(ctx, "probed", metav1.GetOptions{})
		if err == nil && (restarts(*p) < 1 || !suite.PodReady(*p)) {
			err = fmt.Errorf("%d restarts, ready %t", restarts(*p), suite.PodReady(*p))
		}
		return err
	})
}

func TestConfigMapReachesTheVolume(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	level := func(value string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {level: " + value + "}\n"
	}
	s.Apply(ns, level("low"))
	s.Apply(ns, samplePod("reader", "edge2")+"    volumeMounts: [{name: config, mountPath: /config}]\n  volumes: [{name: config, configMap: {name: settings}}]\n")
	pod := s.WaitPods(ns, "app=reader", "edge2", 1)[0]
	shows := func(want string) {
		t.Helper()
		s.WaitFor("the volume to hold "+want, func(ctx context.Context) error {
			page, err := s.Page(ctx, pod)
			if err == nil && !strings.Contains(page, "level = "+want) {
				err = errors.New(page)
			}
			return err
		})
	}
	shows("low")
	s.Apply(ns, level("high"))
	shows("high")
}

func TestHostNetwork(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.Apply(ns, samplePod("bare", "edge1")+"  hostNetwork: true\n")
	pod := s.WaitPods(ns, "app=bare", "edge1", 1)[0]
	if pod.Status.PodIP != pod.Status.HostIP {
		t.Errorf("the pod has %s, its node %s", pod.Status.PodIP, pod.Status.HostIP)
	}
	if _, err := s.Page(t.Context(), pod); err != nil {
		t.Error(err)
	}
}

func TestStaticPodHasAMirror(t *testing.T) {
	s := newSystem(t)
	h, err := s.Trial.Host("edge1")
	s.Check(err)
	manifest := strings.Replace(samplePod("fixed", "edge1"), "  nodeName: edge1\n", "", 1)
	file := filepath.Join(h.Root(), "etc/skerry/manifests/fixed.yaml")
	s.Check(os.WriteFile(file, []byte(manifest), 0o600))
	t.Cleanup(func() { _ = os.Remove(file) })
	pod := s.WaitPods("default", "app=fixed", "edge1", 1)[0]
	if pod.Annotations[corev1.MirrorPodAnnotationKey] == "" {
		t.Errorf("%s is no mirror: %v", pod.Name, pod.Annotations)
	}
	s.Check(os.Remove(file))
	s.WaitPods("default", "app=fixed", "edge1", 0)
}

// Concurrent reads of one object must not collapse into one answer: each pod gets its volumes.
func TestTenPodsShareWhatTheyNeed(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	objects := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: shared}\ndata: {k: v}\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: shared}\nstringData: {k: v}\n"
	for i := range 10 {
		pod := strings.Replace(samplePod(fmt.Sprintf("p%d", i), "edge1"), "labels: {", "labels: {set: shared, ", 1)
		objects += "---\n" + pod + "    volumeMounts: [{name: config, mountPath: /config}, {name: secret, mountPath: /secret}]\n" +
			"  volumes: [{name: config, configMap: {name: shared}}, {name: secret, secret: {secretName: shared}}]\n"
	}
	s.Apply(ns, objects)
	for _, pod := range s.WaitPods(ns, "set=shared", "edge1", 10) {
		page, err := s.Page(t.Context(), pod)
		s.Check(err)
		for _, want := range []string{"config k = v", "secret k = v"} {
			if !strings.Contains(page, want) {
				t.Errorf("%s lacks %q:\n%s", pod.Name, want, page)
			}
		}
	}
}

// A node goes from one transport to the other; pods don't notice, and new ones run.
func TestTransports(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	before := s.Containers("edge1")
	t.Cleanup(func() {
		s.Check(s.Trial.Set(context.Background(), "edge1", []string{"modules.edgeHub.transport=auto"}))
	})
	for _, transport := range []string{"websocket", "quic"} {
		s.Check(s.Trial.Set(t.Context(), "edge1", []string{"modules.edgeHub.transport=" + transport}))
		s.WaitFor("a link over "+transport, func(ctx context.Context) error {
			st, err := s.edgecoreStatus(ctx, "edge1")
			if err == nil && (!st.Link.Linked || st.Link.Transport != transport) {
				err = fmt.Errorf("link: %+v", st.Link)
			}
			return err
		})
		s.Apply(ns, samplePod("over-"+transport, "edge1"))
		s.WaitPods(ns, "app=over-"+transport, "edge1", 1)
		after := strings.Join(s.Containers("edge1"), " ")
		for _, c := range before {
			if !strings.Contains(after, c) {
				t.Errorf("container %s did not outlive the change to %s", c, transport)
			}
		}
	}
}
