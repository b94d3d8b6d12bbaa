package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/poll"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// Patience is how long something may take before a test gives up. It is no figure to reach: the
// machine may be busy.
const Patience = 4 * time.Minute

// FloodReason is the reason of events that a test makes by the thousand: State leaves them out.
const FloodReason = "Flood"

// A System is the trial as a test uses it. A test's faults are repaired when the next one begins.
type System struct {
	Trial    *trial.Trial
	T        *testing.T
	Root     string // the repository's
	Dir      string // the trial's
	Config   *rest.Config
	Client   kubernetes.Interface
	Progress bytes.Buffer // of the trial's commands
	options  trial.Options
}

// Use gives a test the suite's trial, whole: every host up, every program running, every uplink
// whole, every node Ready.
func (u Suite) Use(t *testing.T) *System {
	t.Helper()
	s := open(t, os.Getenv(inner), u.Options)
	s.connect()
	s.Mend(t.Context())
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.State())
		}
	})
	return s
}

// UseOther gives a test a trial of its own, in the folder .trial-NAME, which goes with the test. It
// is for options that the suite's trial can't have.
func UseOther(t *testing.T, name string, o trial.Options) *System {
	t.Helper()
	if os.Getenv(inner) == "" {
		t.Skip("needs a trial: run as root, without -short")
	}
	return Make(t, name, o)
}

// Make is UseOther for a package without a suite, which has built the programs.
func Make(t *testing.T, name string, o trial.Options) *System {
	t.Helper()
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, filepath.Join(root, ".trial-"+name), o)
	s.Check(s.Trial.Down(t.Context())) // leftovers of a killed run
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.Progress.String(), s.State())
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Trial.Down(ctx); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), UpTimeout)
	defer cancel()
	s.Check(s.Trial.Up(ctx, o))
	s.connect()
	return s
}

func open(t *testing.T, dir string, o trial.Options) *System {
	t.Helper()
	if dir == "" {
		t.Skip("needs a trial: run as root, without -short")
	}
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	s := &System{T: t, Root: root, Dir: dir, options: o}
	if s.Trial, err = trial.Open(root, dir, &s.Progress); s.Trial == nil {
		t.Fatal(err)
	}
	return s
}

// connect makes the administrator's client of a trial that is up.
func (s *System) connect() {
	s.T.Helper()
	var err error
	s.Config, err = s.Trial.Admin()
	s.Check(err)
	s.Client, err = kubernetes.NewForConfig(s.Config)
	s.Check(err)
}

// Mend repairs the trial, whatever the test before did to it.
func (s *System) Mend(ctx context.Context) {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience(s.options))
	defer cancel()
	for _, n := range s.options.Nodes() {
		if err := errors.Join(s.Trial.Heal(ctx, n.Name), s.Trial.Shape(ctx, n.Name, lab.Shape{})); err != nil {
			s.T.Fatal(err)
		}
	}
	if err := s.Trial.Up(ctx, s.options); err != nil {
		s.T.Fatalf("mending the trial: %v\n%s", err, s.Progress.String())
	}
}

// State is the text that a person would look at first.
func (s *System) State() string {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var out strings.Builder
	status, err := s.Trial.Status(ctx)
	if err != nil {
		fmt.Fprintln(&out, err)
	} else if err := status.Write(&out); err != nil {
		fmt.Fprintln(&out, err)
	}
	for _, args := range [][]string{{"get", "pods", "-A", "-o", "wide"}, {"get", "events", "-A", "--field-selector=reason!=" + FloodReason}} {
		text, err := s.Run(ctx, append([]string{"kubectl", "--request-timeout=5s"}, args...)...)
		fmt.Fprintln(&out, text)
		if err != nil {
			fmt.Fprintln(&out, err)
		}
	}
	return out.String()
}

// Run runs bin/trial on this trial.
func (s *System) Run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.Root, "bin", "trial"), args...)
	cmd.Dir = s.Root
	cmd.Env = append(os.Environ(), "TRIAL_DIR="+s.Dir)
	if len(args) > 0 && (args[0] == "kubectl" || args[0] == "edge") {
		// One of thousands that end at once: a fifth of its processor time is garbage collection.
		cmd.Env = append(cmd.Env, "GOGC=off")
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("trial %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// Kubectl runs kubectl as the administrator and returns its standard output; an error ends
// the test.
func (s *System) Kubectl(args ...string) string {
	s.T.Helper()
	return s.Must(s.Run(s.T.Context(), append([]string{"kubectl"}, args...)...))
}

// EdgeKubectl runs kubectl on a node, against the node's own API.
func (s *System) EdgeKubectl(node string, args ...string) string {
	s.T.Helper()
	return s.Must(s.TryEdgeKubectl(s.T.Context(), node, args...))
}

func (s *System) TryEdgeKubectl(ctx context.Context, node string, args ...string) (string, error) {
	return s.Run(ctx, append([]string{"edge", node, "kubectl"}, args...)...)
}

func (s *System) Must(out string, err error) string {
	s.T.Helper()
	if err != nil {
		s.T.Fatalf("%v\n%s", err, out)
	}
	return out
}

func (s *System) Check(err error) {
	s.T.Helper()
	if err != nil {
		s.T.Fatal(err)
	}
}

// Cut pulls a node's cable until heal, or the end of the test.
func (s *System) Cut(node string) {
	s.T.Helper()
	s.Check(s.Trial.Cut(s.T.Context(), node, lab.Carrier))
}

// CutSilently lets a node's packets vanish until heal, or the end of the test.
func (s *System) CutSilently(node string) {
	s.T.Helper()
	s.Check(s.Trial.Cut(s.T.Context(), node, lab.Silent))
}

func (s *System) Heal(node string) {
	s.T.Helper()
	s.Check(s.Trial.Heal(s.T.Context(), node))
}

// Kill ends a program by SIGKILL; it stays away until start, or the next test.
func (s *System) Kill(host, program string) {
	s.T.Helper()
	s.Check(s.Trial.Kill(s.T.Context(), host, program))
}

func (s *System) Start(host, program string) {
	s.T.Helper()
	s.Check(s.Trial.Start(s.T.Context(), host, program))
}

// Reboot cuts a node's power and boots it again, without an uplink if offline.
func (s *System) Reboot(node string, offline bool) {
	s.T.Helper()
	s.Check(s.Trial.Reboot(s.T.Context(), node, offline))
}

// WaitFor repeats try until it returns nil. When it does not for Patience, the test ends with
// try's last reason; the state of everything follows.
func (s *System) WaitFor(what string, try func(context.Context) error) {
	s.T.Helper()
	s.WaitForIn(s.T.Context(), what, try)
}

func (s *System) WaitForIn(ctx context.Context, what string, try func(context.Context) error) {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	began := time.Now()
	if err := poll.Until(ctx, 500*time.Millisecond, try); err != nil {
		s.T.Fatalf("waited %v for %s: %v", Patience, what, err)
	}
	if took := time.Since(began); took > poll.Long {
		s.T.Logf("waited %v for %s", took.Round(time.Second), what)
	}
}

// WaitReady waits for the cloud to see a node Ready, or, with ready false, not so.
func (s *System) WaitReady(node string, ready bool) {
	s.T.Helper()
	s.WaitFor(fmt.Sprintf("node %s to be Ready=%v", node, ready), func(ctx context.Context) error {
		n, err := s.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && (c.Status == corev1.ConditionTrue) != ready {
				return fmt.Errorf("its condition is %s: %s", c.Status, c.Message)
			}
		}
		return nil
	})
}

// Namespace makes a namespace whose pods are gone when the test ends, and which goes after them.
// The next test finds none of them on the nodes.
func (s *System) Namespace() string {
	s.T.Helper()
	ns, err := s.Client.CoreV1().Namespaces().Create(s.T.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}}, metav1.CreateOptions{})
	s.Check(err)
	s.T.Cleanup(func() {
		ctx := context.Background()
		s.Mend(ctx) // the test's faults may hold the pods
		// Pods first: the namespace controller would wait for them by the clock.
		if err := s.Client.CoreV1().Pods(ns.Name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			s.T.Error(err)
			return
		}
		if err := s.Client.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			s.T.Error(err)
			return
		}
		s.WaitForIn(ctx, "the pods of "+ns.Name+" to go", func(ctx context.Context) error {
			list, err := s.Client.CoreV1().Pods(ns.Name).List(ctx, metav1.ListOptions{})
			if err == nil && len(list.Items) > 0 {
				err = fmt.Errorf("%d are there still", len(list.Items))
			}
			return err
		})
	})
	s.WaitFor("the default ServiceAccount", func(ctx context.Context) error {
		_, err := s.Client.CoreV1().ServiceAccounts(ns.Name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return ns.Name
}

// Apply applies YAML as the administrator; every ${NAMESPACE} in it is replaced.
func (s *System) Apply(namespace, yaml string) {
	s.T.Helper()
	file := filepath.Join(s.T.TempDir(), "objects.yaml")
	s.Check(os.WriteFile(file, []byte(strings.ReplaceAll(yaml, "${NAMESPACE}", namespace)), 0o600))
	s.Kubectl("apply", "-n", namespace, "-f", file)
}

// WaitPods waits until exactly count pods match the label selector, all Ready and on the named node
// ("" for any), and returns them.
func (s *System) WaitPods(namespace, selector, node string, count int) []corev1.Pod {
	s.T.Helper()
	var pods []corev1.Pod
	s.WaitFor(fmt.Sprintf("%d pods %s in %s to be Ready", count, selector, namespace), func(ctx context.Context) error {
		list, err := s.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		pods = pods[:0]
		var errs []error
		for _, p := range list.Items {
			if node != "" && p.Spec.NodeName != node {
				continue
			}
			pods = append(pods, p)
			if !PodReady(p) {
				errs = append(errs, fmt.Errorf("%s is %s %s %s", p.Name, p.Status.Phase, p.Status.Reason, p.Status.Message))
			}
		}
		if len(pods) != count {
			errs = append(errs, fmt.Errorf("there are %d", len(pods)))
		}
		return errors.Join(errs...)
	})
	return pods
}

func PodReady(p corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil
		}
	}
	return false
}

// Containers are the containers that run on a node, by id: they must be the same after a fault that
// no pod may notice. The runtime is asked, not Kubernetes.
func (s *System) Containers(node string) []string {
	s.T.Helper()
	var out, errs strings.Builder
	code, err := s.Trial.Exec(s.T.Context(), node, trial.Streams{Out: &out, Err: &errs}, nil, "ctr", "--namespace=k8s.io", "tasks", "list")
	s.Check(err)
	if code != 0 {
		s.T.Fatalf("listing containers on %s: %s", node, errs.String())
	}
	var ids []string
	for line := range strings.Lines(out.String()) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[2] == "RUNNING" {
			ids = append(ids, fields[0])
		}
	}
	return ids
}

// Page asks the sample application in a pod for its page, from the pod's node.
func (s *System) Page(ctx context.Context, pod corev1.Pod) (string, error) {
	var out, errs strings.Builder
	get := filepath.Join(s.Dir, "images", "sample")
	code, err := s.Trial.Exec(ctx, pod.Spec.NodeName, trial.Streams{Out: &out, Err: &errs}, nil, get, "get", "http://"+pod.Status.PodIP+":8080/")
	if err == nil && code != 0 {
		err = fmt.Errorf("code %d: %s", code, strings.TrimSpace(errs.String()))
	}
	return out.String(), err
}
