package machine_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/poll"
	"github.com/skerry-io/skerry/tests/cluster/suite"
	"github.com/skerry-io/skerry/tests/cluster/trial"
	"github.com/skerry-io/skerry/tests/machine"
)

// edgecore is for a program that is expected to fail, such as one in which a rule is off.
var edgecore = flag.String("edgecore", "", "another edgecore than that of bin/, on the machine")

const (
	// node is the machine's name.
	node = "machine1"
)

// patience is for one thing that the machine does, which has one slow processor.
var patience = 10 * time.Minute

// unsuitable returns why this computer can't run a machine, if that is no defect of it: the tests
// are skipped then. Of another error, such as a missing program, they fail.
func unsuitable() error {
	err := machine.Possible(context.Background())
	if errors.Is(err, machine.ErrNoDisk) {
		return err
	}
	return nil
}

func TestMain(m *testing.M) {
	flag.DurationVar(&patience, "patience", patience, "how long one thing may take")
	flag.Parse()
	if os.Getuid() == 0 && unsuitable() != nil {
		os.Exit(m.Run()) // each test is skipped, with the reason
	}
	os.Exit(tests().Main(m))
}

func tests() suite.Suite {
	o := trial.DefaultOptions()
	o.Edges, o.Machines, o.Sample = 0, 1, false
	kubelet := "modules.edged.kubelet."
	o.Set = []string{
		kubelet + "evictionPressureTransitionPeriod=1s", kubelet + "shutdownGracePeriod=90s", kubelet + "shutdownGracePeriodCriticalPods=30s",
		"modules.edgeHub.keepalive=3s", "modules.edgeHub.idleTimeout=9s",
	}
	if *edgecore != "" {
		o.Paths = map[string]string{"edgecore": *edgecore}
	}
	return suite.Suite{Name: "machine", Options: o}
}

// system is a trial with a real machine, which has four pods.
type system struct {
	*suite.System
	*joined
	guest *machine.Machine
}

// joined is what the tests of this package share.
type joined struct {
	namespace string
	pods      []corev1.Pod
}

// shared is made by the first test.
var shared struct {
	sync.Mutex
	joined *joined
}

// newSystem gives a test the machine, with its link and all pods running.
func newSystem(t *testing.T) *system {
	t.Helper()
	if os.Getuid() == 0 {
		if err := unsuitable(); err != nil {
			t.Skip(err)
		}
	}
	s := &system{System: tests().Use(t)}
	var err error
	s.guest, err = s.Trial.Guest(node)
	s.Check(err)
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := s.guest.Run(context.WithoutCancel(t.Context()), "edgecore status; journalctl --boot --no-pager | tail -n 60 | cut -c -300")
			t.Log(out)
		}
	})
	shared.Lock()
	defer shared.Unlock()
	if s.joined = shared.joined; s.joined != nil {
		s.heal()
		return s
	}
	s.joined = new(joined)
	// From the next boot on: with its defaults journald deletes the log of the boot before where a
	// test has filled the disk, and it would not tell how that boot ended.
	s.run(`mkdir -p /etc/systemd/journald.conf.d; printf '[Journal]\nSystemKeepFree=1M\n' >/etc/systemd/journald.conf.d/keep.conf`)
	s.makeNamespace()
	s.Apply(s.namespace, pods())
	s.pods = s.awaitPods(4)
	shared.joined = s.joined
	return s
}

// makeNamespace makes the namespace of all tests.
func (s *system) makeNamespace() {
	s.T.Helper()
	ns, err := s.Client.CoreV1().Namespaces().Create(s.T.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "machine-"}}, metav1.CreateOptions{})
	s.Check(err)
	s.namespace = ns.Name
	s.WaitFor("the default ServiceAccount", func(ctx context.Context) error {
		_, err := s.Client.CoreV1().ServiceAccounts(ns.Name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// notes is the file in which containers note their ends (tests/images/sample).
const notes = "/var/lib/notes/all"

// pods are a bare one, a critical one, one of a Deployment, and one of a DaemonSet that ignores
// SIGTERM. They tolerate any taint of the node.
func pods() string {
	// Two without a network of their own: each start of a CNI plugin costs the machine a second.
	return join(
		barePod("bare", podSpec("", "")),
		barePod("critical", podSpec("\n  priorityClassName: system-node-critical\n  hostNetwork: true", `, {name: LISTEN, value: ":8091"}`)),
		controlled("apps/v1", "Deployment", "web", podSpec("", "")),
		controlled("apps/v1", "DaemonSet", "stubborn", podSpec("\n  terminationGracePeriodSeconds: 3\n  hostNetwork: true", `, {name: ON_TERM, value: ignore}, {name: LISTEN, value: ":8092"}`)),
	)
}

// morePods are one of a StatefulSet, one of a Job, one with an init container and a sidecar, and a
// bare one that ignores SIGTERM.
func morePods() string {
	return join(
		controlled("apps/v1", "StatefulSet", "sts", podSpec("\n  hostNetwork: true", `, {name: LISTEN, value: ":8093"}`)),
		controlled("batch/v1", "Job", "job", podSpec("\n  hostNetwork: true\n  restartPolicy: OnFailure", `, {name: ON_TERM, value: "143"}, {name: LISTEN, value: ":8094"}`)),
		barePod("sided", podSpec("\n  hostNetwork: true\n  initContainers:\n  - {name: first, image: \"skerry.local/sample:1\", args: [sum, /app]}"+
			"\n  - "+containerSpec("side", `, {name: LISTEN, value: ":8096"}`, ", restartPolicy: Always"), `, {name: LISTEN, value: ":8095"}`)),
		barePod("stubborn", podSpec("\n  hostNetwork: true\n  terminationGracePeriodSeconds: 3", `, {name: ON_TERM, value: ignore}, {name: LISTEN, value: ":8097"}`)),
	)
}

// idlePods is a Deployment of so many pods, each on a port of its own.
func idlePods(count int) string {
	spec := podSpec("\n  terminationGracePeriodSeconds: 1\n  hostNetwork: true", `, {name: LISTEN, value: ":0"}`)
	return strings.Replace(controlled("apps/v1", "Deployment", "idle", spec), "spec:", fmt.Sprintf("spec:\n  replicas: %d", count), 1)
}

func join(objects ...string) string { return strings.Join(objects, "\n---\n") }

// containerSpec is one of the sample application that notes its end.
func containerSpec(name, env, more string) string {
	return `{name: ` + name + `, image: "skerry.local/sample:1", imagePullPolicy: IfNotPresent, volumeMounts: [{name: notes, mountPath: /notes}],
    env: [{name: NOTE, value: /notes/all}, {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}` + env + "]" + more + "}"
}

func podSpec(more, env string) string {
	return `
  nodeSelector: {kubernetes.io/hostname: ` + node + `}
  tolerations: [{operator: Exists}]
  dnsPolicy: Default
  volumes: [{name: notes, hostPath: {path: ` + filepath.Dir(notes) + `, type: DirectoryOrCreate}}]` + more + `
  containers:
  - ` + containerSpec("main", env, "") + "\n"
}

func controlled(version, kind, name, spec string) string {
	selector := fmt.Sprintf("\n  selector: {matchLabels: {app: %s}}", name)
	switch kind {
	case "Job": // it makes its own
		selector = ""
	case "StatefulSet":
		selector += "\n  serviceName: " + name
	}
	return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s}\nspec:%s\n  template:\n    metadata: {labels: {app: %[3]s}}\n    spec:%[5]s",
		version, kind, name, selector, strings.ReplaceAll(spec, "\n", "\n    "))
}

func barePod(name, spec string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:" + spec
}

// addPods adds so many further pods, of some objects, for the rest of the test.
func (s *system) addPods(count int, manifest string, objects ...string) {
	s.T.Helper()
	before := s.pods
	s.Apply(s.namespace, manifest)
	s.T.Cleanup(func() {
		s.pods = before
		remove := append([]string{"kubectl", "delete", "-n", s.namespace, "--cascade=foreground", "--timeout=" + patience.String()}, objects...)
		_, err := s.Run(context.WithoutCancel(s.T.Context()), remove...)
		if err != nil {
			s.T.Error(err)
		}
	})
	s.pods = s.awaitPods(len(before) + count)
}

// awaitPods waits until the cloud sees so many pods of the machine, all Ready.
func (s *system) awaitPods(count int) (found []corev1.Pod) {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(s.T.Context(), patience)
	defer cancel()
	err := poll.Until(ctx, time.Second, func(ctx context.Context) error {
		list, err := s.Client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		found = list.Items
		for _, p := range found {
			if !suite.PodReady(p) {
				return fmt.Errorf("%s: %s %+v", p.Name, p.Status.Phase, p.Status.ContainerStatuses)
			}
		}
		if len(found) != count {
			return fmt.Errorf("there are %d pods, want %d", len(found), count)
		}
		return nil
	})
	if err != nil {
		s.T.Fatalf("the pods: %v", err)
	}
	return found
}

// long reports whether the scenarios are to be played in full.
func long() bool { return os.Getenv("SKERRY_LONG") != "" }

// times is how often a scenario is played.
func times(full int) int {
	if long() {
		return full
	}
	return 1
}
