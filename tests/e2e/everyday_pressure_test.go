package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	gib = 1 << 30
	// diskSlack is how much others may write to this machine's disk in the course of the test
	// without being taken for the pressure.
	diskSlack = 12 * gib
)

// shortOfDisk lets the kubelet of a device evict when the free space falls by more than diskSlack,
// and returns functions that fill the disk with a file that is no pod's, and empty it.
func (s *system) shortOfDisk(node string) (fill, free func()) {
	s.T.Helper()
	file := func() string { return s.path(node, "/var/lib/foreign") } // a boot changes the path
	var disk unix.Statfs_t
	s.Check(unix.Statfs(s.path(node, "/var/lib"), &disk))
	threshold := disk.Bavail*uint64(disk.Bsize) - diskSlack
	set := func(ctx context.Context, nodefs, imagefs, period string) error {
		return s.Trial.Set(ctx, node, []string{
			fmt.Sprintf(`modules.edged.kubelet.evictionHard={"memory.available":"100Mi","nodefs.available":%q,"imagefs.available":%q}`, nodefs, imagefs),
			"modules.edged.kubelet.evictionPressureTransitionPeriod=" + period,
		})
	}
	free = func() {
		if err := os.Remove(file()); err != nil && !errors.Is(err, os.ErrNotExist) {
			s.T.Error(err)
		}
	}
	s.T.Cleanup(func() {
		free()
		if err := set(context.Background(), "1%", "1%", "5m"); err != nil {
			s.T.Error(err)
		}
	})
	s.Check(set(s.T.Context(), fmt.Sprint(threshold), fmt.Sprint(threshold), "1s"))
	s.waitLinked(node)
	return func() {
		s.T.Helper()
		f, err := os.Create(file())
		s.Check(err)
		defer f.Close()
		s.Check(syscall.Fallocate(int(f.Fd()), 0, 0, 2*diskSlack))
	}, free
}

// terminal notes the pods of a namespace that the cluster ever saw end.
type terminal struct {
	mu   sync.Mutex
	pods map[types.UID]string
}

func (s *system) watchEnds(namespace string) *terminal {
	s.T.Helper()
	seen := &terminal{pods: map[types.UID]string{}}
	w, err := s.Client.CoreV1().Pods(namespace).Watch(s.T.Context(), metav1.ListOptions{})
	s.Check(err)
	s.T.Cleanup(w.Stop)
	go func() {
		for e := range w.ResultChan() {
			if e.Type == watch.Error && s.T.Context().Err() == nil {
				s.T.Errorf("the watch of the cluster's pods has ended: %v", e.Object)
				return
			}
			if p, ok := e.Object.(*corev1.Pod); ok && (p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded) {
				seen.mu.Lock()
				seen.pods[p.UID] = p.Name + " " + string(p.Status.Phase) + " " + p.Status.Reason
				seen.mu.Unlock()
			}
		}
	}()
	return seen
}

func (seen *terminal) of(uid types.UID) string {
	seen.mu.Lock()
	defer seen.mu.Unlock()
	return seen.pods[uid]
}

// restarts are the pods that a device runs again once it can.
func (s *system) restarts(ctx context.Context, node string) (names []string, err error) {
	var d struct {
		Data struct {
			Restarts []struct{ Namespace, Name, Reason string } `json:"podRestarts"`
		} `json:"data"`
	}
	err = s.EdgeStatus(ctx, node, &d)
	for _, p := range d.Data.Restarts {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	return names, err
}

// waitRunningHere waits until the device shows pods running, and being those that they were.
func (s *system) waitRunningHere(node string, pods ...corev1.Pod) {
	s.T.Helper()
	for _, want := range pods {
		s.waitDevice(node, want.Namespace, want.Name, func(p *corev1.Pod) error { return runsAs(want, p) })
	}
}

// runsAs gives the reason that a pod is not the one that it was, or does not run.
func runsAs(want corev1.Pod, p *corev1.Pod) error {
	switch {
	case p.UID != want.UID:
		return fmt.Errorf("its uid is %s, was %s", p.UID, want.UID)
	case !running(p):
		return fmt.Errorf("%s %s %s, %+v", p.Status.Phase, p.Status.Reason, p.Status.Message, p.Status.ContainerStatuses)
	}
	return nil
}

func running(p *corev1.Pod) bool {
	ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	return ready && p.Status.Phase == corev1.PodRunning && !slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Running == nil })
}

// TestEveryday_09: without a link a file that is no pod's fills the disk of a device: the kubelet
// evicts its pods, and rejects them all when edgecore or the device starts again. With room they
// all run again, as the same pods, and the cluster never notices; a pod that is to run once has
// ended. With a link Kubernetes' rules hold.
func TestEveryday_09_PodsEndedByDiskPressureRunAgain(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	fill, free := s.shortOfDisk("edge1")
	s.Apply(ns, islander("bare", "edge1"))
	s.Apply(ns, islander("once", "edge1")+"  restartPolicy: Never\n")
	s.Apply(ns, deployed("web", "edge1"))
	bare, once, web := s.WaitPods(ns, "app=bare", "edge1", 1)[0], s.WaitPods(ns, "app=once", "edge1", 1)[0], s.WaitPods(ns, "app=web", "edge1", 1)[0]
	sample := s.WaitPods("sample", "app=sample", "edge1", 1)[0] // a DaemonSet's
	seen, seenSample := s.watchEnds(ns), s.watchEnds("sample")
	again := []corev1.Pod{bare, web, sample}
	waitEnded := func(when string, least int) {
		t.Helper()
		s.WaitFor("pods to end "+when, func(ctx context.Context) error {
			names, err := s.restarts(ctx, "edge1")
			if err == nil && len(names) < least {
				err = fmt.Errorf("only %q have", names)
			}
			return err
		})
	}

	s.Cut("edge1")
	s.waitUnlinked("edge1")
	fill()
	s.Kill("edge1", "edgecore")
	s.Start("edge1", "edgecore")
	waitEnded("under a kubelet that starts without room", len(again))
	free()
	s.waitRunningHere("edge1", again...)
	s.waitDevice("edge1", ns, "once", func(p *corev1.Pod) error {
		if p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded {
			return fmt.Errorf("it is %s", p.Status.Phase)
		}
		return nil
	})

	fill()
	waitEnded("while they run", 1)
	s.Reboot("edge1", true)
	waitEnded("in a boot without room", len(again))
	free()
	s.waitRunningHere("edge1", again...)

	s.Heal("edge1")
	s.WaitReady("edge1", true)
	s.waitDelivered("edge1")
	for _, p := range again {
		now, err := s.Client.CoreV1().Pods(p.Namespace).Get(t.Context(), p.Name, metav1.GetOptions{})
		s.Check(err)
		if now.UID != p.UID || now.Status.Phase != corev1.PodRunning {
			t.Errorf("the cluster has %s with uid %s, %s; want %s, Running", p.Name, now.UID, now.Status.Phase, p.UID)
		}
		if ended := seen.of(p.UID) + seenSample.of(p.UID); ended != "" {
			t.Errorf("the cluster saw %s", ended)
		}
	}
	s.WaitFor("the end of the pod that runs once to reach the cluster", func(context.Context) error {
		if seen.of(once.UID) == "" {
			return errors.New("it has not")
		}
		return nil
	})

	fill()
	s.WaitFor("pods to end with a link", func(context.Context) error {
		if seen.of(bare.UID) == "" || seen.of(web.UID) == "" {
			return errors.New("they run")
		}
		return nil
	})
	free()
	s.WaitFor("another pod in the place of the Deployment's", func(ctx context.Context) error {
		list, err := s.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(list.Items, func(p corev1.Pod) bool { return p.UID != web.UID && running(&p) }) {
			return errors.New("none runs")
		}
		return nil
	})
	names, err := s.restarts(t.Context(), "edge1")
	s.Check(err)
	if len(names) > 0 {
		t.Errorf("with a link %q wait to run again", names)
	}
	if p, err := s.Client.CoreV1().Pods(ns).Get(t.Context(), "bare", metav1.GetOptions{}); err != nil || p.UID != bare.UID || p.Status.Phase == corev1.PodRunning {
		t.Errorf("the bare pod: %v, %s; Kubernetes leaves it as it has ended", err, p.Status.Phase)
	}
}

// TestEveryday_09: the same for memory: where a device on an island is short of it, the pods that
// its kubelet evicts run again once it is not.
func TestEveryday_09_PodsEndedByMemoryPressureRunAgain(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	pod := *s.pod(ns, "bare", "edge1")
	seen := s.watchEnds(ns)
	evictBelow := func(ctx context.Context, memory string) error {
		return s.Trial.Set(ctx, "edge1", []string{
			fmt.Sprintf(`modules.edged.kubelet.evictionHard={"memory.available":%q,"nodefs.available":"1%%","imagefs.available":"1%%"}`, memory),
			"modules.edged.kubelet.evictionPressureTransitionPeriod=1s",
		})
	}
	const usual = "100Mi"
	t.Cleanup(func() {
		if err := s.Trial.Set(context.Background(), "edge1", []string{
			`modules.edged.kubelet.evictionHard={"memory.available":"100Mi","nodefs.available":"1%","imagefs.available":"1%"}`, "modules.edged.kubelet.evictionPressureTransitionPeriod=5m",
		}); err != nil {
			t.Error(err)
		}
	})
	s.Cut("edge1")
	s.waitUnlinked("edge1")
	s.Check(evictBelow(t.Context(), "99%")) // more than is ever free: whatever else this machine does
	s.WaitFor("the pod to be evicted", func(ctx context.Context) error {
		names, err := s.restarts(ctx, "edge1")
		if err == nil && !slices.Contains(names, ns+"/bare") {
			err = fmt.Errorf("only %q have ended", names)
		}
		return err
	})
	s.WaitFor("the node's memory pressure", func(ctx context.Context) error { // the kubelet reports it after the eviction
		node, err := s.device("edge1").CoreV1().Nodes().Get(ctx, "edge1", metav1.GetOptions{})
		if err == nil && !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeMemoryPressure && c.Status == corev1.ConditionTrue
		}) {
			err = fmt.Errorf("its conditions are %+v", node.Status.Conditions)
		}
		return err
	})
	s.Check(evictBelow(t.Context(), usual))
	s.waitRunningHere("edge1", pod)
	s.Heal("edge1")
	s.WaitReady("edge1", true)
	s.waitDelivered("edge1")
	if ended := seen.of(pod.UID); ended != "" {
		t.Errorf("the cluster saw %s", ended)
	}
}

// deployed is the sample application in a Deployment of one, for one device.
func deployed(name, node string) string {
	pod := islander(name, node)
	pod = pod[strings.Index(pod, "metadata:"):]
	pod = strings.Replace(pod, "  name: "+name+"\n", "", 1)
	pod = strings.Replace(pod, "  nodeName: "+node+"\n", "  nodeSelector: {kubernetes.io/hostname: "+node+"}\n", 1)
	return fmt.Sprintf("apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: %[1]s\nspec:\n  selector: {matchLabels: {app: %[1]s}}\n  template:\n    %[2]s", name, strings.ReplaceAll(pod, "\n", "\n    "))
}
