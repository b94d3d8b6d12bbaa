package e2e_test

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
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// patience is how long something may take before a test gives up. It is no figure to reach: the machine may be busy.
const patience = 2 * time.Minute

// A system is the trial as a test uses it. What a test breaks is mended when it ends.
type system struct {
	*trial.Trial
	t        *testing.T
	root     string
	dir      string
	cfg      *rest.Config
	client   kubernetes.Interface
	progress bytes.Buffer // of the trial's commands
}

// use gives a test the trial, whole: every host up, every program running, every uplink whole, every node Ready.
func use(t *testing.T) *system {
	t.Helper()
	dir := os.Getenv(inner)
	if dir == "" {
		t.Skip("needs a trial: run as root, without -short")
	}
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	s := &system{t: t, root: root, dir: dir}
	if s.Trial, err = trial.Open(root, dir, &s.progress); err != nil {
		t.Fatal(err)
	}
	if s.cfg, err = s.Admin(); err != nil {
		t.Fatal(err)
	}
	if s.client, err = kubernetes.NewForConfig(s.cfg); err != nil {
		t.Fatal(err)
	}
	s.mend(t.Context())
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.state())
		}
	})
	return s
}

// mend makes the trial whole, whatever the test before did to it.
func (s *system) mend(ctx context.Context) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	for _, n := range options().Nodes() {
		if err := errors.Join(s.Heal(ctx, n.Name), s.Trial.Shape(ctx, n.Name, lab.Shape{})); err != nil {
			s.t.Fatal(err)
		}
	}
	if err := s.Up(ctx, options()); err != nil {
		s.t.Fatalf("mending the trial: %v\n%s", err, s.progress.String())
	}
}

// state is what a person would look at first.
func (s *system) state() string {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var out strings.Builder
	status, err := s.Status(ctx)
	if err != nil {
		fmt.Fprintln(&out, err)
	} else if err := status.Write(&out); err != nil {
		fmt.Fprintln(&out, err)
	}
	for _, args := range [][]string{{"get", "pods", "-A", "-o", "wide"}, {"get", "events", "-A", "--field-selector=reason!=" + floodReason}} {
		text, err := s.run(ctx, append([]string{"kubectl", "--request-timeout=5s"}, args...)...)
		fmt.Fprintln(&out, text)
		if err != nil {
			fmt.Fprintln(&out, err)
		}
	}
	return out.String()
}

// run runs bin/trial on this trial.
func (s *system) run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.root, "bin", "trial"), args...)
	cmd.Dir = s.root
	cmd.Env = append(os.Environ(), "TRIAL_DIR="+s.dir)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("trial %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// kubectl runs kubectl as the administrator and returns its standard output; an error ends the test.
func (s *system) kubectl(args ...string) string {
	s.t.Helper()
	return s.must(s.run(s.t.Context(), append([]string{"kubectl"}, args...)...))
}

// edgeKubectl runs kubectl on a node, against the node's own API.
func (s *system) edgeKubectl(node string, args ...string) string {
	s.t.Helper()
	return s.must(s.tryEdgeKubectl(s.t.Context(), node, args...))
}

func (s *system) tryEdgeKubectl(ctx context.Context, node string, args ...string) (string, error) {
	return s.run(ctx, append([]string{"edge", node, "kubectl"}, args...)...)
}

func (s *system) must(out string, err error) string {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
	return out
}

func (s *system) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// cut pulls a node's cable until heal, or the end of the test.
func (s *system) cut(node string) {
	s.t.Helper()
	s.check(s.Cut(s.t.Context(), node, lab.Carrier))
}

// cutSilently lets a node's packets vanish until heal, or the end of the test.
func (s *system) cutSilently(node string) {
	s.t.Helper()
	s.check(s.Cut(s.t.Context(), node, lab.Silent))
}

func (s *system) heal(node string) {
	s.t.Helper()
	s.check(s.Heal(s.t.Context(), node))
}

// kill ends a program by SIGKILL; it stays away until start, or the next test.
func (s *system) kill(host, program string) {
	s.t.Helper()
	s.check(s.Kill(s.t.Context(), host, program))
}

func (s *system) start(host, program string) {
	s.t.Helper()
	s.check(s.Start(s.t.Context(), host, program))
}

// reboot cuts a node's power and boots it again, without an uplink if offline.
func (s *system) reboot(node string, offline bool) {
	s.t.Helper()
	s.check(s.Reboot(s.t.Context(), node, offline))
}

// waitFor repeats try until it returns nil. When it does not for two minutes, the test ends with try's last reason; the state of everything follows.
func (s *system) waitFor(what string, try func(context.Context) error) {
	s.t.Helper()
	s.waitForIn(s.t.Context(), what, try)
}

func (s *system) waitForIn(ctx context.Context, what string, try func(context.Context) error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	last := errors.New("never asked")
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		// An answer that was cut off by the end of the wait explains less than the one before.
		if err := try(ctx); err == nil {
			return
		} else if ctx.Err() == nil {
			last = err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			s.t.Fatalf("waited %v for %s: %v", patience, what, last)
		}
	}
}

// waitReady waits for the cloud to see a node Ready, or, with ready false, not so.
func (s *system) waitReady(node string, ready bool) {
	s.t.Helper()
	s.waitFor(fmt.Sprintf("node %s to be Ready=%v", node, ready), func(ctx context.Context) error {
		n, err := s.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
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

// namespace makes a namespace whose pods are gone when the test ends, and which goes after them. The next test finds none of them on the nodes.
func (s *system) namespace() string {
	s.t.Helper()
	ns, err := s.client.CoreV1().Namespaces().Create(s.t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}}, metav1.CreateOptions{})
	s.check(err)
	s.t.Cleanup(func() {
		ctx := context.Background()
		s.mend(ctx) // what the test broke may hold the pods
		// Pods first: the namespace controller would wait for them by the clock.
		if err := s.client.CoreV1().Pods(ns.Name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			s.t.Error(err)
			return
		}
		if err := s.client.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			s.t.Error(err)
			return
		}
		s.waitForIn(ctx, "the pods of "+ns.Name+" to go", func(ctx context.Context) error {
			list, err := s.client.CoreV1().Pods(ns.Name).List(ctx, metav1.ListOptions{})
			if err == nil && len(list.Items) > 0 {
				err = fmt.Errorf("%d are there still", len(list.Items))
			}
			return err
		})
	})
	s.waitFor("the default ServiceAccount", func(ctx context.Context) error {
		_, err := s.client.CoreV1().ServiceAccounts(ns.Name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return ns.Name
}

// apply applies YAML as the administrator; every ${NAMESPACE} in it is replaced.
func (s *system) apply(namespace, yaml string) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "objects.yaml")
	s.check(os.WriteFile(file, []byte(strings.ReplaceAll(yaml, "${NAMESPACE}", namespace)), 0o600))
	s.kubectl("apply", "-n", namespace, "-f", file)
}

// waitPods waits until exactly count pods match the label selector, all Ready and on the named node ("" for any), and returns them.
func (s *system) waitPods(namespace, selector, node string, count int) []corev1.Pod {
	s.t.Helper()
	var pods []corev1.Pod
	s.waitFor(fmt.Sprintf("%d pods %s in %s to be Ready", count, selector, namespace), func(ctx context.Context) error {
		list, err := s.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
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
			if !podReady(p) {
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

func podReady(p corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil
		}
	}
	return false
}

// containers are the containers that run on a node, by id: what must be the same after a fault that no pod may notice. The runtime is asked, not Kubernetes.
func (s *system) containers(node string) []string {
	s.t.Helper()
	var out, errs strings.Builder
	code, err := s.Exec(s.t.Context(), node, trial.Streams{Out: &out, Err: &errs}, nil, "ctr", "--namespace=k8s.io", "tasks", "list")
	s.check(err)
	if code != 0 {
		s.t.Fatalf("listing containers on %s: %s", node, errs.String())
	}
	var ids []string
	for line := range strings.Lines(out.String()) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[2] == "RUNNING" {
			ids = append(ids, fields[0])
		}
	}
	return ids
}

// page asks the sample application in a pod for its page, from the pod's node.
func (s *system) page(ctx context.Context, pod corev1.Pod) (string, error) {
	var out, errs strings.Builder
	get := filepath.Join(s.dir, "images", "sample")
	code, err := s.Exec(ctx, pod.Spec.NodeName, trial.Streams{Out: &out, Err: &errs}, nil, get, "get", "http://"+pod.Status.PodIP+":8080/")
	if err == nil && code != 0 {
		err = fmt.Errorf("code %d: %s", code, strings.TrimSpace(errs.String()))
	}
	return out.String(), err
}
