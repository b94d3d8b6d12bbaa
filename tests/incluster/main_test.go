// Package incluster_test runs against one whole trial with a cloud as users have it: cloudcore as
// its own Deployment, as `cloudcore install` prints it, with a release's image, on two ordinary
// nodes behind a load balancer.
package incluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/skerry-io/skerry/tests/cluster/suite"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

const (
	systemNamespace = "skerry-system"
	deployment      = "cloudcore"
	selector        = "app.kubernetes.io/name=cloudcore"
)

func TestMain(m *testing.M) { os.Exit(tests().Main(m)) }

func tests() suite.Suite {
	o := trial.DefaultOptions()
	o.Plain, o.InCluster = 2, true
	o.Set = []string{
		"modules.edgeHub.keepalive=3s", "modules.edgeHub.idleTimeout=9s", // how soon a silent link is given up
		"modules.edged.reportEvent=true",
	}
	return suite.Suite{Name: "incluster", Options: o}
}

type system struct{ *suite.System }

func newSystem(t *testing.T) *system {
	t.Helper()
	return &system{tests().Use(t)}
}

// pods are cloudcore's that run, by name.
func (s *system) pods(ctx context.Context) (map[string]corev1.Pod, error) {
	list, err := s.Client.CoreV1().Pods(systemNamespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	all := map[string]corev1.Pod{}
	for _, p := range list.Items {
		if suite.PodReady(p) {
			all[p.Name] = p
		}
	}
	return all, nil
}

// edge is a device's status of its link.
type edge struct {
	Link struct {
		Linked    bool
		Transport string
		Server    string
		Instance  string // of cloudcore: the pod's name, with something behind it
		LastError string
	}
	Data struct {
		Outbox struct{ Waiting map[string]int }
	}
}

func (s *system) edge(ctx context.Context, node string) (e edge, err error) {
	err = s.EdgeStatus(ctx, node, &e)
	return e, err
}

// replicaOf is cloudcore's pod that has the link of a device.
func (s *system) replicaOf(ctx context.Context, node string) (corev1.Pod, error) {
	e, err := s.edge(ctx, node)
	if err != nil {
		return corev1.Pod{}, err
	}
	if !e.Link.Linked {
		return corev1.Pod{}, fmt.Errorf("%s has no link: %s", node, e.Link.LastError)
	}
	pods, err := s.pods(ctx)
	if err != nil {
		return corev1.Pod{}, err
	}
	for name, p := range pods {
		if strings.HasPrefix(e.Link.Instance, name+"-") {
			return p, nil
		}
	}
	return corev1.Pod{}, fmt.Errorf("%s is linked to %s, which is none of the pods that run", node, e.Link.Instance)
}

func (s *system) waitReplicaOf(node string) (pod corev1.Pod) {
	s.T.Helper()
	s.WaitFor("the link of "+node, func(ctx context.Context) (err error) {
		pod, err = s.replicaOf(ctx, node)
		return err
	})
	return pod
}

// waitDelivered waits until a device's backlog is empty.
func (s *system) waitDelivered(node string) {
	s.T.Helper()
	s.WaitFor("the outbox of "+node+" to be empty", func(ctx context.Context) error {
		e, err := s.edge(ctx, node)
		if err != nil {
			return err
		}
		for class, n := range e.Data.Outbox.Waiting {
			if n > 0 {
				return fmt.Errorf("%d of class %s wait", n, class)
			}
		}
		if !e.Link.Linked {
			return fmt.Errorf("it has no link: %s", e.Link.LastError)
		}
		return nil
	})
}

// deviceConfig is a client configuration for a device's own API, as seen from the device.
func (s *system) deviceConfig(node string) *rest.Config {
	s.T.Helper()
	h, err := s.Trial.Host(node)
	s.Check(err)
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(h.Root(), s.Trial.EdgeKubeconfig()))
	s.Check(err)
	cfg.Dial, cfg.QPS, cfg.WarningHandler = h.Dial, -1, rest.NoWarnings{}
	return cfg
}

// waitRolledOut waits until a Deployment of cloudcore has exactly its replicas.
func (s *system) waitRolledOut(name string) {
	s.T.Helper()
	s.WaitFor("deployment "+name, func(ctx context.Context) error {
		d, err := s.Client.AppsV1().Deployments(systemNamespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil && !rolledOut(d) {
			err = fmt.Errorf("of %d replicas %d are up to date, %d available", d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.AvailableReplicas)
		}
		return err
	})
}

func rolledOut(d *appsv1.Deployment) bool {
	want, is := *d.Spec.Replicas, d.Status
	return is.ObservedGeneration >= d.Generation && is.UpdatedReplicas == want && is.AvailableReplicas == want && is.Replicas == want
}

// reporter is a pod whose readiness a test changes. Unlike the sample it has no liveness probe,
// which would restart it before the test looks.
const reporter = `apiVersion: v1
kind: Pod
metadata: {name: reporter-NODE, labels: {app: reporter}}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 1
  containers:
  - name: reporter
    image: skerry.local/sample:1
    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, failureThreshold: 1}
`

// reporter is the pod of a device that stays for all tests.
func (s *system) reporter(node string) corev1.Pod {
	s.T.Helper()
	s.Apply("sample", strings.ReplaceAll(reporter, "NODE", node))
	return s.WaitPods("sample", "app=reporter", node, 1)[0]
}

// reports waits until the state that a device's kubelet sees is at kube-apiserver: a pod is made
// unready, then ready again.
func (s *system) reports(node string) {
	s.T.Helper()
	s.reportsOf(s.reporter(node))
}

func (s *system) reportsOf(pod corev1.Pod) {
	s.T.Helper()
	for _, step := range []struct {
		path  string
		ready bool
	}{{"fail", false}, {"heal", true}} {
		s.post(pod, step.path)
		s.WaitFor(fmt.Sprintf("pod %s to be shown with Ready=%t", pod.Name, step.ready), func(ctx context.Context) error {
			p, err := s.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
			if err == nil && suite.PodReady(*p) != step.ready {
				err = fmt.Errorf("it is %s with %v", p.Status.Phase, p.Status.Conditions)
			}
			return err
		})
	}
}

// on runs a line of shell on a host.
func (s *system) on(ctx context.Context, host, line string) (string, error) {
	var out, errs strings.Builder
	code, err := s.Trial.Exec(ctx, host, trial.Streams{Out: &out, Err: &errs}, nil, "sh", "-c", line)
	if err == nil && code != 0 {
		err = fmt.Errorf("%s: code %d: %s", line, code, errs.String())
	}
	return out.String(), err
}

// post asks the sample application in a pod to do something, from the pod's node.
func (s *system) post(pod corev1.Pod, path string) {
	s.T.Helper()
	var out strings.Builder
	code, err := s.Trial.Exec(s.T.Context(), pod.Spec.NodeName, trial.Streams{Out: &out, Err: &out}, nil, "curl", "-sS", "--max-time", "10", "-X", "POST",
		"http://"+pod.Status.PodIP+":8080/"+path)
	if err == nil && code != 0 {
		err = errors.New(out.String())
	}
	s.Check(err)
}

// neverNotReady watches the Nodes of devices until the returned function is called, which fails the
// test if one was anything but Ready in the meantime.
func (s *system) neverNotReady(nodes ...string) (end func()) {
	s.T.Helper()
	ctx, cancel := context.WithCancel(s.T.Context())
	var all sync.WaitGroup
	var mu sync.Mutex
	var seen []string
	for _, node := range nodes {
		all.Go(func() {
			err := watchNode(ctx, s.Client, node, func(status corev1.ConditionStatus, message string) {
				if status != corev1.ConditionTrue {
					mu.Lock()
					defer mu.Unlock()
					seen = append(seen, fmt.Sprintf("%s was Ready=%s: %s", node, status, message))
				}
			})
			if ctx.Err() == nil {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, fmt.Sprintf("the watch of %s ended: %v", node, err))
			}
		})
	}
	return func() {
		s.T.Helper()
		cancel()
		all.Wait()
		for _, what := range seen {
			s.T.Error(what)
		}
	}
}

// watchNode calls saw with each Ready condition that a Node has, until ctx ends.
func watchNode(ctx context.Context, client kubernetes.Interface, node string, saw func(corev1.ConditionStatus, string)) error {
	for {
		w, err := client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + node})
		if err != nil {
			return err
		}
		for event := range w.ResultChan() {
			n, ok := event.Object.(*corev1.Node)
			if !ok {
				continue
			}
			for _, c := range n.Status.Conditions {
				if c.Type == corev1.NodeReady {
					saw(c.Status, c.Message)
				}
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond) // a watch that kube-apiserver ends is opened again
	}
}
