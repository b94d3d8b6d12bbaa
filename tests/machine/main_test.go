package machine_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
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

const (
	// node is the machine's name, and number that of its cables.
	node   = "machine"
	number = 9
	// patience is for one thing that the machine does, which has one slow processor.
	patience = 10 * time.Minute
)

func TestMain(m *testing.M) {
	code := tests().Main(m)
	if err := end(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func tests() suite.Suite {
	o := trial.DefaultOptions()
	o.Edges, o.Sample = 1, false
	return suite.Suite{Name: "machine", Options: o}
}

// system is a trial, and a real machine that has joined it, with four pods.
type system struct {
	*suite.System
	*joined
}

// joined is the one machine of this package's tests.
type joined struct {
	guest     *machine.Machine
	dir       string // the machine's
	namespace string
	pods      []corev1.Pod
}

// shared is made by the first test: that takes a minute or more.
var shared struct {
	sync.Mutex
	machine *joined
}

// end is the power cut at the end of all tests.
func end() error {
	if shared.machine == nil {
		return nil
	}
	return errors.Join(shared.machine.guest.Cut(), os.RemoveAll(shared.machine.dir))
}

// newSystem gives a test the machine, with its link and all pods running.
func newSystem(t *testing.T) *system {
	t.Helper()
	s := &system{System: tests().Use(t)}
	shared.Lock()
	defer shared.Unlock()
	if shared.machine == nil {
		s.makeMachine()
	} else {
		s.joined = shared.machine
		s.heal()
	}
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := s.guest.Run(context.WithoutCancel(t.Context()), "edgecore status; journalctl --boot --no-pager | tail -n 60 | cut -c -300")
			t.Log(out)
		}
	})
	return s
}

// makeMachine boots a machine, installs edgecore's package and joins.
func (s *system) makeMachine() {
	s.T.Helper()
	router, err := s.Trial.Host("router")
	s.Check(err)
	dir, err := os.MkdirTemp("", "machine-")
	s.Check(err)
	s.joined = &joined{dir: dir}
	s.guest, err = machine.New(s.T.Context(), machine.Spec{Name: node, Number: number, Memory: 1200, Dir: dir, Router: router})
	if errors.Is(err, machine.ErrTooWide) || errors.Is(err, machine.ErrNoDisk) {
		s.T.Skip(err)
	}
	s.Check(err)
	shared.machine = s.joined // TestMain ends it
	s.Check(s.guest.Start())
	token, err := exec.CommandContext(s.T.Context(), filepath.Join(s.Root, "bin", "cloudcore"), "token", "create", "--kubeconfig", s.Trial.Kubeconfig(), "--node", node).Output()
	s.Check(err)
	s.await("the machine's boot", "systemctl is-system-running --wait")
	s.Check(s.guest.Join(s.T.Context(), machine.Package{Root: s.Root, Images: filepath.Join(s.Dir, "images")}, token,
		"modules: {edged: {kubelet: {evictionPressureTransitionPeriod: 1s, shutdownGracePeriod: 90s, shutdownGracePeriodCriticalPods: 30s}}, edgeHub: {keepalive: 3s, idleTimeout: 9s}}\n"))
	s.WaitReady(node, true)
	s.makeNamespace()
	s.Apply(s.namespace, pods())
	s.pods = s.awaitPods(4)
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
	spec := func(more, env string) string {
		return `
  nodeSelector: {kubernetes.io/hostname: ` + node + `}
  tolerations: [{operator: Exists}]
  dnsPolicy: Default
  volumes: [{name: notes, hostPath: {path: ` + filepath.Dir(notes) + `, type: DirectoryOrCreate}}]` + more + `
  containers:
  - {name: main, image: "skerry.local/sample:1", imagePullPolicy: IfNotPresent, volumeMounts: [{name: notes, mountPath: /notes}],
    env: [{name: NOTE, value: /notes/all}, {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}` + env + "]}\n"
	}
	controlled := func(kind, name, spec string) string {
		return fmt.Sprintf("apiVersion: apps/v1\nkind: %s\nmetadata: {name: %s}\nspec:\n  selector: {matchLabels: {app: %[2]s}}\n  template:\n    metadata: {labels: {app: %[2]s}}\n    spec:%s",
			kind, name, strings.ReplaceAll(spec, "\n", "\n    "))
	}
	bare := func(name, spec string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:" + spec
	}
	// Two without a network of their own: each start of a CNI plugin costs the machine a second.
	return strings.Join([]string{
		bare("bare", spec("", "")),
		bare("critical", spec("\n  priorityClassName: system-node-critical\n  hostNetwork: true", `, {name: LISTEN, value: ":8091"}`)),
		controlled("Deployment", "web", spec("", "")),
		controlled("DaemonSet", "stubborn", spec("\n  terminationGracePeriodSeconds: 3\n  hostNetwork: true", `, {name: ON_TERM, value: ignore}, {name: LISTEN, value: ":8092"}`)),
	}, "\n---\n")
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
