package incluster_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/tests/cluster/suite"
)

// load writes events about a pod to its device's API until it is stopped, every fifth twice, and
// records the acknowledged ones.
type load struct {
	pod  corev1.Pod
	want map[string]int32 // an event's count, by its name
	err  error
	stop context.CancelFunc
	done sync.WaitGroup
}

const (
	// loadPeriod makes 25 events a second, below cloudcore's rate for one node.
	loadPeriod = 40 * time.Millisecond
	maxLoad    = 4000
)

func (s *system) load(pod corev1.Pod) *load {
	s.T.Helper()
	client, err := kubernetes.NewForConfig(s.deviceConfig(pod.Spec.NodeName))
	s.Check(err)
	ctx, cancel := context.WithCancel(s.T.Context())
	l := &load{pod: pod, want: map[string]int32{}, stop: cancel}
	l.done.Go(func() { l.err = l.run(ctx, client) })
	return l
}

func (l *load) run(ctx context.Context, client kubernetes.Interface) error {
	tick := time.NewTicker(loadPeriod)
	defer tick.Stop()
	for i := range maxLoad {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		// A write that has begun is finished: an event is acknowledged or it is not.
		if err := l.write(context.WithoutCancel(ctx), client, i); err != nil {
			return err
		}
	}
	return fmt.Errorf("the rollout was not over after %d events", maxLoad)
}

func (l *load) write(ctx context.Context, client kubernetes.Interface, i int) error {
	at := metav1.Unix(1_700_000_000+int64(i), 0)
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("%s.load-%05d", l.pod.Name, i), Namespace: l.pod.Namespace},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: l.pod.Namespace, Name: l.pod.Name, UID: l.pod.UID},
		Reason:         suite.FloodReason, Message: fmt.Sprint("load ", i), Type: corev1.EventTypeNormal, Count: 1, FirstTimestamp: at, LastTimestamp: at,
		Source: corev1.EventSource{Component: "test", Host: l.pod.Spec.NodeName}, ReportingController: "test", ReportingInstance: l.pod.Spec.NodeName,
	}
	events := client.CoreV1().Events(e.Namespace)
	if err := again(ctx, func() error {
		_, err := events.Create(ctx, e, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // the answer to an earlier try was lost
		}
		return err
	}); err != nil {
		return fmt.Errorf("writing event %d: %w", i, err)
	}
	l.want[e.Name] = 1
	if i%5 != 0 {
		return nil
	}
	if err := again(ctx, func() error {
		_, err := events.Patch(ctx, e.Name, types.StrategicMergePatchType, []byte(`{"count":2}`), metav1.PatchOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("repeating event %d: %w", i, err)
	}
	l.want[e.Name] = 2
	return nil
}

func again(ctx context.Context, write func() error) error {
	ctx, cancel := context.WithTimeout(ctx, suite.Patience)
	defer cancel()
	for {
		err := write()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

func (l *load) end() error {
	l.stop()
	l.done.Wait()
	return l.err
}

// cloudcore is rolled out again while devices report: each event that a device took is at
// kube-apiserver, with its count, and so is each restart of a container.
func TestShip_09_RolloutUnderLoadLosesNothing(t *testing.T) {
	s := newSystem(t)
	s.waitRolledOut(deployment)
	before, err := s.pods(t.Context())
	s.Check(err)
	loads := map[string]*load{}
	restarts := map[string]int32{}
	for _, node := range []string{"edge1", "edge2"} {
		pod := s.WaitPods("sample", "app=sample", node, 1)[0]
		restarts[node] = pod.Status.ContainerStatuses[0].RestartCount
		loads[node] = s.load(pod)
	}
	end := s.neverNotReady("edge1", "edge2")
	s.Kubectl("-n", systemNamespace, "rollout", "restart", "deployment/"+deployment)
	for node, l := range loads {
		// The connection ends with the process, so the request has no answer.
		if _, err := s.on(t.Context(), node, "curl -sS --max-time 10 -X POST http://"+l.pod.Status.PodIP+":8080/crash"); err == nil {
			t.Errorf("the sample on %s has not crashed", node)
		}
	}
	s.Kubectl("-n", systemNamespace, "rollout", "status", "deployment/"+deployment, "--timeout=3m")
	s.waitRolledOut(deployment)
	end()
	for _, l := range loads { // all of it, before any device is waited for
		if err := l.end(); err != nil {
			t.Error(err)
		}
	}
	for node, l := range loads {
		s.waitDelivered(node)
		s.waitEvents(l)
		s.WaitFor("the restart on "+node+" to be counted", func(ctx context.Context) error {
			p, err := s.Client.CoreV1().Pods(l.pod.Namespace).Get(ctx, l.pod.Name, metav1.GetOptions{})
			if err == nil && p.Status.ContainerStatuses[0].RestartCount != restarts[node]+1 {
				err = fmt.Errorf("%d restarts are shown, and %d were before", p.Status.ContainerStatuses[0].RestartCount, restarts[node])
			}
			return err
		})
		if p := s.waitReplicaOf(node); before[p.Name].Name != "" {
			t.Errorf("%s is linked to %s, which was to be replaced", node, p.Name)
		}
	}
}

// waitEvents compares the device's accepted events with those at kube-apiserver.
func (s *system) waitEvents(l *load) {
	s.T.Helper()
	list, err := s.Client.CoreV1().Events(l.pod.Namespace).List(s.T.Context(),
		metav1.ListOptions{FieldSelector: "involvedObject.name=" + l.pod.Name + ",reason=" + suite.FloodReason})
	s.Check(err)
	got := map[string]int32{}
	for _, e := range list.Items {
		got[e.Name] = e.Count
	}
	if diff := cmp.Diff(l.want, got); diff != "" {
		s.T.Errorf("%s took %d events, %d arrived (-taken +arrived):\n%.3000s", l.pod.Spec.NodeName, len(l.want), len(got), diff)
	}
	if len(l.want) == 0 {
		s.T.Errorf("%s took no events", l.pod.Spec.NodeName)
	}
	s.T.Logf("%s: %d events", l.pod.Spec.NodeName, len(l.want))
}
