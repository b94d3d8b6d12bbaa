package bench_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

const (
	whatFailover = "a device is confirmed to be dead, until its application runs on another one"

	appNamespace, appName, plainName = "failover", "app", "plain"
	lostNode, otherNode              = "edge1", "edge2"
)

// failovers switches a device off that runs an application of one copy and a Deployment of one
// replica, declares it dead, and looks when each runs on the other device. It has a trial of its
// own, of two edges.
func (s *bench) failovers(b *testing.B) {
	root, err := binary.Root()
	check(b, err)
	_, err = binary.Build(b.Context(), root, "kubeplane", "cloudcore", "edgecore", "trial")
	check(b, err)
	t, err := trial.Open(root, filepath.Join(root, *dir+"-failover"), os.Stderr)
	check(b, err)
	check(b, t.Down(b.Context()))
	defer func() {
		if err := t.Down(context.Background()); err != nil {
			b.Error(err)
		}
	}()
	options := trial.DefaultOptions()
	options.Edges, options.Quick, options.Sample = 2, true, false
	ctx, cancel := context.WithTimeout(b.Context(), upTimeout)
	defer cancel()
	check(b, t.Up(ctx, options))
	config, err := t.Admin()
	check(b, err)
	f := &failover{b: b, trial: t}
	f.client, err = kubernetes.NewForConfig(config)
	check(b, err)
	f.dynamic, err = dynamic.NewForConfig(config)
	check(b, err)
	_, err = f.client.CoreV1().Namespaces().Create(b.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: appNamespace, Labels: map[string]string{v1alpha1.EdgeAppNamespaceLabel: "enabled"},
	}}, metav1.CreateOptions{})
	check(b, err)

	r := row{what: whatFailover, unit: "ms", floorName: "a plain Deployment on the same two devices, at the same time", goal: "at most 2 x", judge: ratio(2)}
	for range *rounds {
		ours, floor := f.round()
		r.ours, r.floor = append(r.ours, ms(ours)), append(r.floor, ms(floor))
	}
	r.note = "from the taint node.kubernetes.io/out-of-service on. Both pods are made at once and start on the same device side by side; that of the application is held by a scheduling gate until the " +
		"old one is gone from the API, which a Deployment does not wait for: it may run twice."
	s.rows = append(s.rows, r)
}

type failover struct {
	b       *testing.B
	trial   *trial.Trial
	client  kubernetes.Interface
	dynamic dynamic.Interface
}

// round is one death.
func (f *failover) round() (ours, floor time.Duration) {
	ctx := f.b.Context()
	f.make()
	f.wait("both to run on "+lostNode, func(pods []corev1.Pod) error { return running(pods, lostNode) })
	check(f.b, f.trial.PowerOff(ctx, lostNode))
	eventually(f.b, lostNode+" to be NotReady", time.Second, func(ctx context.Context) error {
		if f.ready(ctx, lostNode) {
			return errors.New("it is Ready")
		}
		return nil
	})
	pause(f.b, 5*time.Second) // cloudcore has seen it too, and waits for a word
	watch, err := f.client.CoreV1().Pods(appNamespace).Watch(ctx, metav1.ListOptions{})
	check(f.b, err)
	defer watch.Stop()
	begin := time.Now()
	f.declare(true)
	for late := time.After(upTimeout); ours == 0 || floor == 0; {
		select {
		case <-late:
			f.b.Fatalf("after %v: %v", upTimeout, running(f.pods(ctx), otherNode))
		case e, ok := <-watch.ResultChan():
			p, is := e.Object.(*corev1.Pod)
			switch {
			case !ok:
				f.b.Fatal("the watch has ended")
			case !is || p.Spec.NodeName != otherNode || p.Status.Phase != corev1.PodRunning:
			case p.Labels[v1alpha1.EdgeAppLabel] == appName && ours == 0:
				ours = time.Since(begin)
			case p.Labels["app"] == plainName && floor == 0:
				floor = time.Since(begin)
			}
		}
	}
	f.remove()
	f.declare(false)
	check(f.b, f.trial.Reboot(ctx, lostNode, false))
	eventually(f.b, lostNode+" to be Ready", time.Second, func(ctx context.Context) error {
		if !f.ready(ctx, lostNode) {
			return errors.New("it is not")
		}
		return nil
	})
	f.wait("no pod to be left", func(pods []corev1.Pod) error {
		if len(pods) > 0 {
			return fmt.Errorf("%d are", len(pods))
		}
		return nil
	})
	return ours, floor
}

func (f *failover) apps() dynamic.ResourceInterface {
	return f.dynamic.Resource(v1alpha1.Resource(v1alpha1.EdgeApps)).Namespace(appNamespace)
}

// make makes both, of the same pod, which would rather run on the device that will be lost.
func (f *failover) make() {
	container := map[string]any{"name": "sample", "image": "skerry.local/sample:1", "imagePullPolicy": "IfNotPresent"}
	app := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "skerry.io/v1alpha1", "kind": "EdgeApp", "metadata": map[string]any{"name": appName},
		"spec": map[string]any{
			"designatedNode": lostNode, "singleton": true, "failover": map[string]any{"after": "1s"},
			"template": map[string]any{"spec": map[string]any{"dnsPolicy": "Default", "terminationGracePeriodSeconds": int64(1), "containers": []any{container}}},
		},
	}}
	one, grace, labels := int32(1), int64(1), map[string]string{"app": plainName}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: plainName}, Spec: appsv1.DeploymentSpec{
		Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			DNSPolicy: corev1.DNSDefault, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "sample", Image: "skerry.local/sample:1", ImagePullPolicy: corev1.PullIfNotPresent}},
			Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
				Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{lostNode}},
				}},
			}}}},
		}},
	}}
	eventually(f.b, "the application to be made", 250*time.Millisecond, func(ctx context.Context) error {
		_, err := f.apps().Create(ctx, app, metav1.CreateOptions{})
		return existing(err)
	})
	_, err := f.client.AppsV1().Deployments(appNamespace).Create(f.b.Context(), deployment, metav1.CreateOptions{})
	check(f.b, err)
}

func existing(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func (f *failover) remove() {
	check(f.b, f.apps().Delete(f.b.Context(), appName, metav1.DeleteOptions{}))
	check(f.b, f.client.AppsV1().Deployments(appNamespace).Delete(f.b.Context(), plainName, metav1.DeleteOptions{}))
}

// declare declares the device dead, or takes that back.
func (f *failover) declare(dead bool) {
	taint := corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}
	eventually(f.b, "the taint", 10*time.Millisecond, func(ctx context.Context) error {
		n, err := f.client.CoreV1().Nodes().Get(ctx, lostNode, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == taint.Key })
		if dead {
			n.Spec.Taints = append(n.Spec.Taints, taint)
		}
		_, err = f.client.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
		return err
	})
}

func (f *failover) ready(ctx context.Context, node string) bool {
	n, err := f.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return false
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (f *failover) pods(ctx context.Context) []corev1.Pod {
	list, err := f.client.CoreV1().Pods(appNamespace).List(ctx, metav1.ListOptions{})
	check(f.b, err)
	return list.Items
}

func (f *failover) wait(what string, is func([]corev1.Pod) error) {
	eventually(f.b, what, 250*time.Millisecond, func(ctx context.Context) error { return is(f.pods(ctx)) })
}

// running returns an error unless both run on a node.
func running(pods []corev1.Pod, node string) error {
	n := 0
	for _, p := range pods {
		if p.Spec.NodeName == node && p.Status.Phase == corev1.PodRunning {
			n++
		}
	}
	if n != 2 {
		return fmt.Errorf("%d of %d pods run on %s", n, len(pods), node)
	}
	return nil
}
