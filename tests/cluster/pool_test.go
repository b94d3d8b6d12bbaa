package cluster_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/process"
)

// helper makes this program the part of TestPoolEndsWithItsOwner that borrows.
const helper = "SKERRY_POOL_HELPER"

// The next user of a control plane finds none of the earlier objects, and all that a new one has.
// The pool is this test's own: in a run of several test binaries another one could borrow the
// control plane between the two.
func TestLentControlPlaneIsAsNew(t *testing.T) {
	t.Setenv("SKERRY_PLANES_OWNER", strconv.Itoa(os.Getpid()))
	var server string
	t.Run("the first", func(t *testing.T) {
		c := cluster.Run(t)
		server = c.Server
		c.Apply(t, "manifests/crds")
		c.Apply(t, "manifests/cloudcore")
		c.Apply(t, "manifests/autonomy")
		ctx, client := t.Context(), c.Client()
		must := func(_ any, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "left"}}, metav1.CreateOptions{}))
		must(client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "left"}}, metav1.CreateOptions{}))
		// One that no delete ends, and one without which there would be no admin.
		must(client.CoreV1().ConfigMaps("left").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "left", Finalizers: []string{"example.test/never"}}},
			metav1.CreateOptions{}))
		if err := client.RbacV1().ClusterRoles().Delete(ctx, "view", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		must(client.CoreV1().Namespaces().Patch(ctx, "default", "application/merge-patch+json", []byte(`{"metadata":{"labels":{"left":"yes"}}}`), metav1.PatchOptions{}))
		if err := c.Kill(ctx); err == nil {
			t.Error("a control plane that others use could be killed")
		}
	})
	t.Run("the second", func(t *testing.T) {
		c := cluster.Run(t)
		if c.Server != server {
			t.Errorf("another control plane was started, at %s beside %s", c.Server, server)
		}
		// kube-apiserver learns of the reset as of other writes, a moment later.
		cluster.Eventually(t, "nothing to be left", func(ctx context.Context) error { return asNew(ctx, c.Client()) })
		ns := c.Namespace(t) // its controllers work
		if _, err := c.Client().CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
		c.Apply(t, "manifests/crds") // as well as the first time
		t.Run("while it is lent", func(t *testing.T) {
			if other := cluster.Run(t); other.Server == c.Server {
				t.Error("two have the same control plane")
			}
		})
	})
}

// The shared control plane of a process is not lent again while its tests borrow and return others.
func TestSharedStaysLent(t *testing.T) {
	c := cluster.Shared(t)
	for range 3 { // a file is closed after a collection has found it, by a goroutine
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
	}
	if other := cluster.Run(t); other.Server == c.Server {
		t.Error("what this process shares was lent again")
	}
}

// Tests that are repeated by -count find no objects of the round before.
func TestSharedIsAsNewInEachRound(t *testing.T) {
	if os.Getenv(helper) == "" {
		again(t, "^TestSharedIsAsNewInEachRound$", 3, helper+"=1")
		return
	}
	maps := func() typedcorev1.ConfigMapInterface {
		return cluster.Shared(t).Client().CoreV1().ConfigMaps(metav1.NamespaceDefault)
	}
	if _, err := maps().Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "left"}}, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := maps().Get(t.Context(), "left", metav1.GetOptions{}); err != nil { // the same round still
		t.Error(err)
	}
}

func asNew(ctx context.Context, client kubernetes.Interface) error {
	namespaces, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, ns := range namespaces.Items {
		if _, labelled := ns.Labels["left"]; labelled || ns.Name == "left" || ns.Name == "skerry-system" {
			return fmt.Errorf("namespace %s has labels %v", ns.Name, ns.Labels)
		}
	}
	if _, err := client.CoreV1().ConfigMaps("left").Get(ctx, "left", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return fmt.Errorf("the ConfigMap with a finalizer: want NotFound, got %v", err)
	}
	if _, err := client.CoreV1().Nodes().Get(ctx, "left", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return fmt.Errorf("the node: want NotFound, got %v", err)
	}
	if _, err := client.RbacV1().ClusterRoles().Get(ctx, "view", metav1.GetOptions{}); err != nil {
		return fmt.Errorf("what was deleted: %w", err)
	}
	policies, err := client.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(ctx, metav1.ListOptions{})
	if err == nil && len(policies.Items) > 0 {
		err = fmt.Errorf("policy %s is left", policies.Items[0].Name)
	}
	if err != nil {
		return err
	}
	_, lists, err := client.Discovery().ServerGroupsAndResources()
	if err != nil {
		return err
	}
	for _, l := range lists {
		if strings.HasPrefix(l.GroupVersion, "skerry.io/") {
			return fmt.Errorf("%s is still served", l.GroupVersion)
		}
	}
	return nil
}

// A control plane of the pool survives the end of its borrower, and not that of its owner, and
// leaves no directory.
func TestPoolEndsWithItsOwner(t *testing.T) {
	if os.Getenv(helper) != "" {
		fmt.Println("server", cluster.Shared(t).Server, "in", cluster.Shared(t).Dir)
		return
	}
	started := filepath.Join(t.TempDir(), "started")
	if err := os.WriteFile(started, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	owner, borrow := ownedPool(t, "SKERRY_TEST_TALLY="+started)
	server, dir := borrow()
	if second, _ := borrow(); second != server {
		t.Errorf("the second process got %s, the first %s", second, server)
	}
	if raw, err := os.ReadFile(started); err != nil || strings.Count(string(raw), "\n") != 1 {
		t.Errorf("want one start for two processes, got %q, %v", raw, err)
	}
	if err := owner.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, dir)
}

// A control plane that is idle ends by itself, and the next borrower gets a new one.
func TestPoolEndsWhatIsIdle(t *testing.T) {
	_, borrow := ownedPool(t, "SKERRY_PLANES_IDLE=3s")
	_, dir := borrow()
	awaitEnd(t, dir)
	if _, again := borrow(); again != dir {
		t.Errorf("the next is in %s, want %s", again, dir)
	}
}

// ownedPool starts an owner of a pool, which ends with the test at the latest. borrow borrows a
// control plane of that pool in a process that ends at once.
func ownedPool(t *testing.T, env ...string) (owner *process.Started, borrow func() (server, dir string)) {
	t.Helper()
	if testing.Short() {
		t.Skip("a real control plane is started only without -short")
	}
	owner, err := process.Start(process.Spec{Path: "/bin/sleep", Args: []string{"infinity"}, Bound: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = owner.Kill(context.WithoutCancel(t.Context())) })
	env = append(env, helper+"=1", fmt.Sprintf("SKERRY_PLANES_OWNER=%d", owner.PID))
	return owner, func() (server, dir string) {
		t.Helper()
		out := again(t, "^TestPoolEndsWithItsOwner$", 1, env...)
		for line := range strings.Lines(out) {
			if n, _ := fmt.Sscanf(line, "server %s in %s", &server, &dir); n == 2 {
				return server, dir
			}
		}
		t.Fatalf("no control plane was borrowed:\n%s", out)
		return "", ""
	}
}

// awaitEnd waits until no process of a control plane is left, nor its directory.
func awaitEnd(t *testing.T, dir string) {
	t.Helper()
	cluster.Eventually(t, "the control plane to end", func(context.Context) error {
		left, err := process.Select(func(pid int) bool { return strings.Contains(strings.Join(process.Cmdline(pid), " "), dir) })
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%v still run", left)
		}
		if _, gone := os.Stat(dir); err == nil && gone == nil {
			err = fmt.Errorf("%s is left", dir)
		}
		return err
	})
}

// again runs a test of this program in a process of its own, count times.
func again(t *testing.T, test string, count int, env ...string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run", test, fmt.Sprintf("-test.count=%d", count))
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}
