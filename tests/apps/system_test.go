package apps_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster/suite"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// A system is the trial as a test uses it, with the extras of these tests.
type system struct {
	*suite.System
	dynamic dynamic.Interface
}

func newSystem(t *testing.T) *system {
	t.Helper()
	s := &system{System: tests().Use(t)}
	var err error
	s.dynamic, err = dynamic.NewForConfig(s.Config)
	s.Check(err)
	t.Cleanup(func() {
		if t.Failed() {
			out, err := s.Run(context.Background(), "kubectl", "get", "edgeapps,replicasets", "-A", "-o", "yaml")
			t.Log(out, err)
		}
	})
	return s
}

// Namespace makes a namespace that may have applications.
func (s *system) Namespace() string {
	s.T.Helper()
	ns := s.System.Namespace()
	s.Kubectl("label", "namespace", ns, v1alpha1.EdgeAppNamespaceLabel+"=enabled")
	return ns
}

func (s *system) apps(namespace string) dynamic.ResourceInterface {
	return s.dynamic.Resource(v1alpha1.Resource(v1alpha1.EdgeApps)).Namespace(namespace)
}

// appYAML is an application of one container; more is further lines of its spec.
func appYAML(name, node string, more ...string) string {
	return fmt.Sprintf(`apiVersion: skerry.io/v1alpha1
kind: EdgeApp
metadata: {name: %s}
spec:
  designatedNode: %s
  failover: {after: 2s}
%s
  template:
    spec:
      dnsPolicy: Default
      terminationGracePeriodSeconds: 1
      containers:
      - {name: sample, image: skerry.local/sample:1, imagePullPolicy: IfNotPresent}
`, name, node, strings.Join(more, "\n"))
}

// create makes an application, once policies let it.
func (s *system) create(namespace, text string) {
	s.T.Helper()
	s.WaitFor("the application to be made", func(ctx context.Context) error {
		_, err := s.apps(namespace).Create(ctx, s.object(text), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			err = nil
		}
		return err
	})
}

func (s *system) object(text string) *unstructured.Unstructured {
	s.T.Helper()
	u := &unstructured.Unstructured{}
	s.Check(yaml.Unmarshal([]byte(text), &u.Object))
	return u
}

func (s *system) read(ctx context.Context, namespace, name string) (*v1alpha1.EdgeApp, error) {
	u, err := s.apps(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return convert(u)
}

func convert(u *unstructured.Unstructured) (*v1alpha1.EdgeApp, error) {
	app := &v1alpha1.EdgeApp{}
	return app, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, app)
}

// waitApp waits until an application satisfies is.
func (s *system) waitApp(namespace, name, what string, is func(*v1alpha1.EdgeApp) bool) *v1alpha1.EdgeApp {
	s.T.Helper()
	var app *v1alpha1.EdgeApp
	s.WaitFor("application "+name+" "+what, func(ctx context.Context) (err error) {
		if app, err = s.read(ctx, namespace, name); err != nil {
			return err
		}
		if !is(app) {
			return fmt.Errorf("its status is %+v", app.Status)
		}
		return nil
	})
	return app
}

// waitOn waits until an application runs on a node, and returns its pod.
func (s *system) waitOn(namespace, name, node string) corev1.Pod {
	s.T.Helper()
	s.waitApp(namespace, name, "to run on "+node, func(a *v1alpha1.EdgeApp) bool {
		return a.Status.Phase == v1alpha1.PhaseRunning && a.Status.ActiveNode == node
	})
	for _, pod := range s.pods(namespace, name) {
		if pod.Spec.NodeName == node && suite.PodReady(pod) {
			return pod
		}
	}
	s.T.Fatalf("application %s runs on %s, says its status, but no pod does", name, node)
	return corev1.Pod{}
}

func (s *system) pods(namespace, name string) []corev1.Pod {
	s.T.Helper()
	list, err := s.Client.CoreV1().Pods(namespace).List(s.T.Context(), metav1.ListOptions{LabelSelector: v1alpha1.EdgeAppLabel + "=" + name})
	s.Check(err)
	return list.Items
}

// waitOne waits until an application has exactly one pod.
func (s *system) waitOne(namespace, name string) {
	s.T.Helper()
	s.WaitFor("one pod of "+name, func(ctx context.Context) error {
		list, err := s.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.EdgeAppLabel + "=" + name})
		if err == nil && len(list.Items) != 1 {
			err = fmt.Errorf("there are %d", len(list.Items))
		}
		return err
	})
}

func condition(app *v1alpha1.EdgeApp, kind string) *metav1.Condition {
	return meta.FindStatusCondition(app.Status.Conditions, kind)
}

// is returns a condition that is True, else nil.
func is(app *v1alpha1.EdgeApp, kind string) *metav1.Condition {
	if c := condition(app, kind); c != nil && c.Status == metav1.ConditionTrue {
		return c
	}
	return nil
}

// lasts checks something again and again for a while.
func (s *system) lasts(what string, d time.Duration, check func() error) {
	s.T.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(250 * time.Millisecond) {
		if err := check(); err != nil {
			s.T.Fatalf("%s: %v", what, err)
		}
	}
}

// outOfService declares a node switched off, as a person would, until the test ends.
func (s *system) outOfService(node string) {
	s.T.Helper()
	s.Kubectl("taint", "node", node, corev1.TaintNodeOutOfService+"=nodeshutdown:NoExecute", "--overwrite")
	s.T.Cleanup(func() { s.inService(node) })
}

func (s *system) inService(node string) {
	s.T.Helper()
	ctx := context.Background()
	s.WaitForIn(ctx, "the taint to be taken from "+node, func(ctx context.Context) error {
		n, err := s.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
		_, err = s.Client.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
		return err
	})
}

// copies are the nodes on which a container of an application runs, asked of each runtime
// that can be.
func (s *system) copies(pods ...corev1.Pod) (nodes []string) {
	s.T.Helper()
	for _, n := range options().Nodes() {
		for _, id := range s.Containers(n.Name) {
			if slices.ContainsFunc(pods, func(p corev1.Pod) bool { return containerOf(p) == id }) {
				nodes = append(nodes, n.Name)
			}
		}
	}
	return nodes
}

// containerOf is the id of a pod's container in the runtime.
func containerOf(p corev1.Pod) string {
	if len(p.Status.ContainerStatuses) == 0 {
		return ""
	}
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	return id
}

// patchNode changes a node's labels by a merge patch.
func (s *system) patchNode(node, patch string) {
	s.T.Helper()
	_, err := s.Client.CoreV1().Nodes().Patch(s.T.Context(), node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	s.Check(err)
}

var errNot = errors.New("it is not")

// streams lets a command's output go.
func streams() trial.Streams { return trial.Streams{} }
