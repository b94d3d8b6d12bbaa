package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// notes is where the pods of a test write down how they end (tests/images/sample), on the device.
const notes = "/var/lib/notes"

// container is one of the sample application that notes its end.
func container(name, more string) string {
	return fmt.Sprintf(`{name: %[1]s, image: "skerry.local/sample:1", imagePullPolicy: IfNotPresent, volumeMounts: [{name: notes, mountPath: /notes}],
        env: [{name: NOTE, value: /notes/all}, {name: CONTAINER, value: %[1]s}, {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}%[2]s}`, name, more)
}

// everydayPods are one of each kind that a device has. A pod that exits 0 at SIGTERM, as most do
// here, becomes Succeeded by a kubelet's own shutdown.
func everydayPods() string {
	spec := func(more, containers string) string {
		return more + `
      nodeSelector: {kubernetes.io/hostname: edge1}
      tolerations: [{operator: Exists}]
      dnsPolicy: Default
      volumes: [{name: notes, hostPath: {path: ` + notes + `, type: DirectoryOrCreate}}]
      containers:
      ` + containers
	}
	one := "- " + container("main", "]")
	controlled := func(kind, name, more, pod string) string {
		return fmt.Sprintf(`apiVersion: apps/v1
kind: %[1]s
metadata: {name: %[2]s}
spec:
  selector: {matchLabels: {app: %[2]s}}%[3]s
  template:
    metadata: {labels: {app: %[2]s}}
    spec:%[4]s
`, kind, name, more, pod)
	}
	bare := func(name, pod string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %[1]s, labels: {app: %[1]s}}\nspec:%[2]s\n", name, strings.ReplaceAll(pod, "\n      ", "\n  "))
	}
	return strings.Join([]string{
		bare("bare", spec("", one)),
		bare("stubborn", spec("\n      terminationGracePeriodSeconds: 3", "- "+container("main", `, {name: ON_TERM, value: ignore}]`))),
		bare("critical", spec("\n      priorityClassName: system-node-critical", one)),
		bare("hooked", spec("", "- "+container("main", `], lifecycle: {preStop: {exec: {command: [/app, note, hook]}}}`))),
		bare("sided", spec(`
      initContainers:
      - `+container("first", `], args: [sum, /app]`)+`
      - `+container("side", `, {name: LISTEN, value: ":8081"}], restartPolicy: Always`), one)),
		controlled("Deployment", "web", "", spec("", one)),
		controlled("StatefulSet", "sts", "\n  serviceName: sts", spec("", one)),
		controlled("DaemonSet", "ds", "", spec("", one)),
		`apiVersion: batch/v1
kind: Job
metadata: {name: job}
spec:
  template:
    metadata: {labels: {app: job}}
    spec:` + spec("\n      restartPolicy: OnFailure", "- "+container("main", `, {name: ON_TERM, value: "143"}]`)),
	}, "\n---\n")
}

const everydayCount = 9

// uids are the UIDs of pods by name.
func uids(pods []corev1.Pod) map[string]types.UID {
	all := map[string]types.UID{}
	for _, p := range pods {
		all[p.Name] = p.UID
	}
	return all
}

// waitAgain waits until an API shows the same pods as before, no other, all Ready, each container
// started again.
func (s *system) waitAgain(client kubernetes.Interface, namespace string, before []corev1.Pod) {
	s.T.Helper()
	began := map[types.UID]int32{}
	for _, p := range before {
		began[p.UID] = restarts(p)
	}
	s.WaitFor("the same pods to run again", func(ctx context.Context) error {
		list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if diff := cmp.Diff(uids(before), uids(list.Items)); diff != "" {
			return fmt.Errorf("other pods (-before +now):\n%s", diff)
		}
		var errs []error
		for _, p := range list.Items {
			if !ready(p) || restarts(p) == began[p.UID] {
				errs = append(errs, fmt.Errorf("%s is %s %s, Ready %t, restarts %d", p.Name, p.Status.Phase, p.Status.Reason, ready(p), restarts(p)))
			}
		}
		return errors.Join(errs...)
	})
}

func ready(p corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}

// ends are the containers' notes: "sigterm", "hook" or "end" of POD/CONTAINER, and when; pods of
// controllers by the first word of their names.
func (s *system) ends(node string) map[string]int64 {
	s.T.Helper()
	raw, err := os.ReadFile(s.path(node, filepath.Join(notes, "all")))
	s.Check(err)
	all := map[string]int64{}
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) != 4 {
			s.T.Fatalf("a note is %q", line)
		}
		at, err := strconv.ParseInt(f[3], 10, 64)
		s.Check(err)
		pod, _, _ := strings.Cut(f[0], "-")
		all[f[2]+" "+pod+"/"+f[1]] = at
	}
	return all
}

// inOrder fails where one thing was not noted after another.
func inOrder(t *testing.T, ends map[string]int64, first, then string) {
	t.Helper()
	if ends[first] == 0 || ends[then] == 0 || ends[then] < ends[first] {
		t.Errorf("%q at %d, %q at %d; want one after the other", first, ends[first], then, ends[then])
	}
}

// shutdownLog is logind's log on a device in all its boots.
func (s *system) shutdownLog(node string) string {
	s.T.Helper()
	raw, err := os.ReadFile(s.Trial.LogPath(node, "logind"))
	s.Check(err)
	return string(raw)
}

// TestEveryday_01: an orderly reboot without a link ends containers, each by SIGTERM and in the
// order of priorities, and no pod.
func TestEveryday_01_OrderlyRebootOnAnIsland(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.Check(os.RemoveAll(s.path("edge1", notes)))
	s.Apply(ns, everydayPods())
	before := s.WaitPods(ns, "", "edge1", everydayCount)
	s.Cut("edge1")
	s.Check(s.Trial.RebootOrderly(t.Context(), "edge1", false))
	s.waitAgain(s.device("edge1"), ns, before)

	ends := s.ends("edge1")
	for _, pod := range []string{"bare/main", "critical/main", "hooked/main", "sided/main", "sided/side", "web/main", "sts/main", "ds/main", "job/main"} {
		for _, want := range []string{"sigterm ", "end "} {
			if ends[want+pod] == 0 {
				t.Errorf("%s: no %s", pod, want)
			}
		}
	}
	if ends["sigterm stubborn/main"] == 0 || ends["end stubborn/main"] != 0 {
		t.Error("the stubborn pod was not asked to end, or ended by itself")
	}
	for ended := range ends {
		if pod := strings.TrimPrefix(ended, "sigterm "); pod != ended && pod != "critical/main" {
			inOrder(t, ends, ended, "sigterm critical/main")
		}
	}
	inOrder(t, ends, "hook hooked/main", "sigterm hooked/main")
	inOrder(t, ends, "end sided/main", "sigterm sided/side")
	if log := s.shutdownLog("edge1"); strings.Contains(log, "held for too long") || !strings.Contains(log, "ends containers") {
		t.Errorf("logind's log:\n%s", log)
	}
	if conf, err := os.ReadFile(s.path("edge1", "/etc/systemd/logind.conf.d/99-skerry.conf")); err != nil || !strings.Contains(string(conf), "InhibitDelayMaxSec=36") {
		t.Errorf("the drop-in is %q, %v", conf, err)
	}

	running := s.Containers("edge1")
	s.Heal("edge1")
	s.WaitReady("edge1", true)
	s.waitAgain(s.Client, ns, before)
	if diff := cmp.Diff(running, s.Containers("edge1"), sorted()); diff != "" {
		t.Errorf("containers changed when the link came back (-before +after):\n%s", diff)
	}
}

// follow records the changes of a namespace's pods, as the cloud sees them. changed names those
// that were made, deleted or ended since.
func (s *system) follow(namespace string) (changed func() []string) {
	s.T.Helper()
	list, err := s.Client.CoreV1().Pods(namespace).List(s.T.Context(), metav1.ListOptions{})
	s.Check(err)
	ctx, cancel := context.WithCancel(s.T.Context())
	w, err := s.Client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	s.Check(err)
	var mu sync.Mutex
	seen := map[string]bool{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			var what string
			switch {
			case e.Type != watch.Modified:
				what = string(e.Type)
			case p.DeletionTimestamp != nil:
				what = "is being deleted"
			case p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded:
				what = "is " + string(p.Status.Phase)
			default:
				continue
			}
			mu.Lock()
			seen[p.Name+" on "+p.Spec.NodeName+" "+what] = true
			mu.Unlock()
		}
	}()
	s.T.Cleanup(func() { cancel(); <-done })
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Sorted(maps.Keys(seen))
	}
}

// TestEveryday_02: the same with a link: no pod moves though it could, no pod is replaced, no
// leftovers; in between the node is not Ready.
func TestEveryday_02_OrderlyRebootOnLine(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.Apply(ns, everydayPods())
	s.Apply(ns, `apiVersion: apps/v1
kind: Deployment
metadata: {name: mobile}
spec:
  selector: {matchLabels: {app: mobile}}
  template:
    metadata: {labels: {app: mobile}}
    spec:
      dnsPolicy: Default
      affinity:
        nodeAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - {weight: 100, preference: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [edge1]}]}}
      containers: [{name: sample, image: "skerry.local/sample:1", imagePullPolicy: IfNotPresent}]
`)
	before := s.WaitPods(ns, "", "edge1", everydayCount+1)
	changed := s.follow(ns)
	nodes, err := s.Client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=edge1"})
	s.Check(err)
	defer nodes.Stop()
	s.Check(s.Trial.RebootOrderly(t.Context(), "edge1", false))
	s.waitAgain(s.Client, ns, before)
	s.WaitReady("edge1", true)
	if what := changed(); len(what) > 0 {
		t.Errorf("pods: %s", strings.Join(what, ", "))
	}
	s.WaitFor("the node to have been not Ready, and why", func(context.Context) error {
		for {
			select {
			case e := <-nodes.ResultChan():
				n, ok := e.Object.(*corev1.Node)
				if ok && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
					return c.Type == corev1.NodeReady && c.Status == corev1.ConditionFalse && c.Message == "node is shutting down"
				}) {
					return nil
				}
			default:
				return errors.New("not seen")
			}
		}
	})
}

// TestEveryday_03: `systemctl stop edgecore` and a start later: containers keep running.
func TestEveryday_03_EdgecoreStopsAndStarts(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.Apply(ns, samplePod("bare", "edge1"))
	before := s.WaitPods(ns, "", "edge1", 1)
	changed := s.follow(ns)
	running := s.Containers("edge1")
	s.Cut("edge1")
	s.Check(s.Trial.Stop(t.Context(), "edge1", "edgecore"))
	if diff := cmp.Diff(running, s.Containers("edge1"), sorted()); diff != "" {
		t.Errorf("without edgecore (-before +after):\n%s", diff)
	}
	s.Start("edge1", "edgecore")
	s.waitKubelet("edge1")
	s.Heal("edge1")
	s.waitLinked("edge1")
	s.WaitReady("edge1", true)
	if diff := cmp.Diff(running, s.Containers("edge1"), sorted()); diff != "" {
		t.Errorf("with edgecore (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(uids(before), uids(s.WaitPods(ns, "", "edge1", 1))); diff != "" || len(changed()) > 0 {
		t.Errorf("pods (-before +after): %s %q", diff, changed())
	}
}

// waitKubelet waits until a device's kubelet runs, as edgecore has it.
func (s *system) waitKubelet(node string) {
	s.T.Helper()
	s.WaitFor("the kubelet", func(ctx context.Context) error {
		code, err := s.Trial.Exec(ctx, node, trial.Streams{}, nil, filepath.Join(s.Dir, "images", "sample"), "get", "http://127.0.0.1:10551/readyz")
		if err == nil && code != 0 {
			err = errors.New("edgecore is not ready")
		}
		return err
	})
}

// TestEveryday_04: on an island containerd is killed, then edgecore, which hangs at last and is
// killed by its watchdog: containers keep running. An edgecore that is killed while the device
// shuts down, and starts again, starts no kubelet.
func TestEveryday_04_KilledAtAnyTime(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.Apply(ns, samplePod("bare", "edge1"))
	before := s.WaitPods(ns, "", "edge1", 1)
	running := s.Containers("edge1")
	s.Cut("edge1")
	s.Kill("edge1", "containerd")
	s.Start("edge1", "containerd")
	s.Kill("edge1", "edgecore")
	s.Start("edge1", "edgecore")
	s.waitKubelet("edge1")
	s.Check(s.Trial.Signal(t.Context(), "edge1", "edgecore", syscall.SIGSTOP))
	if diff := cmp.Diff(running, s.Containers("edge1"), sorted()); diff != "" {
		t.Errorf("while edgecore hangs (-before +after):\n%s", diff)
	}
	s.Kill("edge1", "edgecore") // as systemd does when no word comes in WatchdogSec
	s.Start("edge1", "edgecore")
	s.waitKubelet("edge1")
	if diff := cmp.Diff(running, s.Containers("edge1"), sorted()); diff != "" {
		t.Errorf("after the kills (-before +after):\n%s", diff)
	}
	// A runtime that does not answer holds a shutdown up for logind's time at most; edgecore dies
	// in the meantime, and its lock with it.
	s.Check(s.Trial.Signal(t.Context(), "edge1", "containerd", syscall.SIGSTOP))
	s.logind("edge1", "reboot")
	s.Kill("edge1", "edgecore")
	s.Check(s.Trial.RebootOrderly(t.Context(), "edge1", false))
	s.waitAgain(s.device("edge1"), ns, before)
}

// TestEveryday_04_RuntimeIsDown: if the container runtime is dead or hangs, the device's status
// reports it, and so does a condition of its Node until it is back.
func TestEveryday_04_RuntimeIsDown(t *testing.T) {
	s := newSystem(t)
	status := func(want string) {
		t.Helper()
		s.WaitFor("the device to report the state of its runtime", func(ctx context.Context) error {
			var d struct{ Runtime string }
			err := s.EdgeStatus(ctx, "edge1", &d)
			if err == nil && (want == "" && d.Runtime != "" || !strings.Contains(d.Runtime, want)) {
				err = fmt.Errorf("it reports %q", d.Runtime)
			}
			return err
		})
	}
	condition := func(want corev1.ConditionStatus) {
		t.Helper()
		s.WaitFor("the condition to be "+string(want), func(ctx context.Context) error {
			node, err := s.Client.CoreV1().Nodes().Get(ctx, "edge1", metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range node.Status.Conditions {
				if c.Type == "SkerryPodsNotRunning" && c.Status == want && (want == corev1.ConditionFalse || c.Reason == "ContainerRuntimeNotReady" && strings.Contains(c.Message, "does not answer")) {
					return nil
				}
			}
			return fmt.Errorf("%+v", node.Status.Conditions)
		})
	}
	s.Kill("edge1", "containerd")
	status("does not answer")
	condition(corev1.ConditionTrue)
	s.Start("edge1", "containerd")
	status("")
	condition(corev1.ConditionFalse)
	s.Check(s.Trial.Signal(t.Context(), "edge1", "containerd", syscall.SIGSTOP))
	t.Cleanup(func() { _ = s.Trial.Signal(context.WithoutCancel(t.Context()), "edge1", "containerd", syscall.SIGCONT) })
	status("does not answer")
}

// logind runs the program that stands for systemd on a device.
func (s *system) logind(node string, args ...string) {
	s.T.Helper()
	var errs strings.Builder
	code, err := s.Trial.Exec(s.T.Context(), node, trial.Streams{Err: &errs}, nil, filepath.Join(s.Dir, "images", "logind"), args...)
	s.Check(err)
	if code != 0 {
		s.T.Fatalf("logind %q: %s", args, errs.String())
	}
}

// TestEveryday_05: operations that reboot a device on an island, whatever lets them go ahead, leave
// it its pods.
func TestEveryday_05_OperationsOnAnIsland(t *testing.T) {
	s := newSystem(t)
	ns := s.drains()
	const before = `modules.drain.hooks.reboot=echo "$SKERRY_NODE goes down for $SKERRY_OPERATION"; touch ` + rebootMark
	s.set("edge1", "modules.drain.hooks.reboot="+filepath.Join(s.Dir, "images", "logind")+" reboot", before)
	s.Apply(ns, samplePod("bare", "edge1"))
	pods := s.WaitPods(ns, "", "edge1", 1)
	s.Cut("edge1")
	const begins = "a shutdown begins"
	for name, args := range map[string][]string{
		"skipped": {"--drain", "Skip"}, "proceeds": {"--drain", "BestEffort", "--when-unreachable", "Proceed"}, "forced": nil,
	} {
		asked := strings.Count(s.shutdownLog("edge1"), begins)
		order := func(args ...string) {
			t.Helper()
			if out, code, complaint := s.edgecore("edge1", append([]string{"operation"}, args...)...); code != 0 {
				t.Fatalf("operation %q: %s %s", args, out, complaint)
			}
		}
		order(append([]string{"reboot", "--name", name}, args...)...)
		if args == nil {
			order("force", name, "--complete")
		}
		s.WaitFor("the hook of "+name, func(context.Context) error {
			if n := strings.Count(s.shutdownLog("edge1"), begins); n != asked+1 {
				return fmt.Errorf("%d shutdowns", n-asked)
			}
			return nil
		})
		s.Check(s.Trial.RebootOrderly(t.Context(), "edge1", false))
		s.waitAgain(s.device("edge1"), ns, pods)
		if out, _, complaint := s.edgecore("edge1", "operation", "list"); !strings.Contains(out, name) || strings.Contains(out, "Waiting") || strings.Contains(out, "Running") {
			t.Errorf("the operations:\n%s%s", out, complaint)
		}
		list, err := s.device("edge1").CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
		s.Check(err)
		pods = list.Items // the next boot restarts them once more
	}
}

// TestEveryday_05: a reboot by hand while an operation drains the device for a reboot completes the
// operation: the device does not reboot again.
func TestEveryday_05_ByHandInMidDrain(t *testing.T) {
	s := newSystem(t)
	ns := s.drains()
	s.web(ns, "edge1", 1)
	before := s.WaitPods(ns, "app=web", "edge1", 1)
	s.Apply(ns, nodeOperation("one", "edge1", "Reboot", ""))
	s.waitOperation("one", "held", isHeld)
	s.Check(s.Trial.RebootOrderly(t.Context(), "edge1", false))
	if st := s.waitOperation("one", "done", isDone("Booted")).Status; st.BootIDBefore == st.BootIDAfter || st.BootIDBefore == "" {
		t.Errorf("boots %q and %q", st.BootIDBefore, st.BootIDAfter)
	}
	s.waitCordon("edge1", false, "")
	s.waitAgain(s.Client, ns, before)
	if _, err := os.Stat(s.path("edge1", rebootMark)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its hook ran: %v", err)
	}
}
