package join_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/artefactrepo"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/process"
)

// ancient is a device whose edgecore supports protocol 1 alone, as an old release would, started by
// skerry-launch under a supervisor.
type ancient struct {
	*system
	t    *testing.T
	log  string
	repo *artefactrepo.Repository
}

const rescued = "rescued"

func newAncient(t *testing.T) *ancient {
	t.Helper()
	plane := cluster.Shared(t)
	plane.Apply(t, "manifests/crds")
	dir := t.TempDir()
	repo, err := artefactrepo.New(filepath.Join(dir, "artefacts"))
	if err != nil {
		t.Fatal(err)
	}
	if err := repo.Publish(); err != nil {
		t.Fatal(err)
	}
	join, websocket := cluster.FreeAddress(t, "tcp"), cluster.FreeAddress(t, "tcp")
	s := newSystemWith(t, plane, fmt.Sprintf("advertise: [127.0.0.1]\nhub:\n  websocket: {listen: %q}\n  quic: {listen: \"\"}\njoin: {listen: %q}\nartefacts: {dir: %q}\n", websocket, join, repo.Dir))
	s.join, s.websocket = join, websocket
	_, port, _ := strings.Cut(websocket, ":")
	config := hollow(t, fmt.Sprintf("{enable: true, transport: websocket, websocket: {port: %s}}", port))
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, []byte(strings.Replace(string(text), "drain: {enable: false}", "drain: {enable: true}", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, said, code := s.edge(t, config, s.token(t), rescued, join); code != 0 {
		t.Fatalf("join: exit code %d, %s", code, said)
	}
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	launcher, err := binary.Build(t.Context(), root, "skerry-launch")
	if err != nil {
		t.Fatal(err)
	}
	a := &ancient{system: s, t: t, log: filepath.Join(dir, "log"), repo: repo}
	program := filepath.Join(dir, "package")
	if err := os.WriteFile(program, a.program("--protocol 1"), 0o755); err != nil {
		t.Fatal(err)
	}
	const supervised = `trap 'kill $c 2>/dev/null; wait $c; exit' TERM; while :; do "$@" & c=$!; wait $c; sleep 0.2; done`
	args := []string{"-c", supervised, "supervisor", launcher[0], "--dir", filepath.Join(filepath.Dir(config), "data", "bin"), "--version-file", "", "--",
		program, "--config", config, "--socket", filepath.Join(dir, "s"), "--keys", repo.Dir}
	child, err := process.Start(process.Spec{Path: "/bin/sh", Args: args, Log: a.log, Bound: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := child.Stop(context.Background(), 30*time.Second); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			raw, _ := os.ReadFile(a.log)
			t.Logf("%s", raw[max(0, len(raw)-6000):])
		}
	})
	return a
}

// program is an edgecore without its kubelet that is started with more flags.
func (a *ancient) program(flags string) []byte {
	return []byte("#!/bin/sh\nexec " + a.hollowedge + " " + flags + " \"$@\"\n")
}

func (a *ancient) logged(what string) error {
	raw, err := os.ReadFile(a.log)
	if err == nil && !strings.Contains(string(raw), what) {
		err = errors.New(string(raw[max(0, len(raw)-1000):]))
	}
	return err
}

// A device that is three releases old, and has no version of the protocol in common with the cloud,
// is rescued: its upgrade, and no other operation, comes down over a session without a Lease, and
// its reports go up; the new version has a link, and carries out the rest.
func TestFleet_02_OldDeviceIsRescued(t *testing.T) {
	a := newAncient(t)
	client, err := dynamic.NewForConfig(a.plane.Admin())
	if err != nil {
		t.Fatal(err)
	}
	operations := client.Resource(v1alpha1.Resource(v1alpha1.NodeOperations))
	get := func(ctx context.Context, name string) (o v1alpha1.NodeOperation, done *metav1.Condition, err error) {
		u, err := operations.Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			err = k8sruntime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &o)
		}
		return o, meta.FindStatusCondition(o.Status.Conditions, v1alpha1.OperationDone), err
	}
	create := func(name string, spec map[string]any) {
		t.Helper()
		spec["nodeName"] = rescued
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.SchemeGroupVersion.String(), "kind": "NodeOperation", "metadata": map[string]any{"name": name}, "spec": spec,
		}}
		cluster.Eventually(t, "operation "+name+" to be made", func(ctx context.Context) error {
			_, err := operations.Create(ctx, o, metav1.CreateOptions{})
			return err
		})
		t.Cleanup(func() { _ = operations.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	}
	cluster.Eventually(t, "a rescue session", func(context.Context) error { return a.logged("the link is for an upgrade alone") })
	create("rescue-later", map[string]any{"operation": "Config", "config": map[string]any{"patch": "{}"}})
	create("rescue-absent", map[string]any{"operation": "Upgrade", "upgrade": map[string]any{"version": "v7.0.0"}})
	cluster.Eventually(t, "a version that is not there to be refused", func(ctx context.Context) error {
		o, _, err := get(ctx, "rescue-absent")
		if err == nil && o.Status.CompletedAt == nil {
			err = fmt.Errorf("status is %+v", o.Status)
		}
		return err
	})
	if o, _, err := get(t.Context(), "rescue-later"); err != nil || o.Status.RequestedAt != nil {
		t.Errorf("another operation came down: %+v, %v", o.Status, err)
	}
	if l, err := a.plane.Client().CoordinationV1().Leases("kube-node-lease").Get(t.Context(), rescued, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a Lease was acquired: %v, %v", l, err)
	}

	target, err := a.repo.Add("v9.0.0", runtime.GOARCH, a.program(""), func(t *artefactrepo.Target) { t.Protocol, t.ProtocolMin = 2, 2 })
	if err != nil {
		t.Fatal(err)
	}
	create("rescue-up", map[string]any{"operation": "Upgrade", "upgrade": map[string]any{"version": "v9.0.0"}})
	cluster.Eventually(t, "the upgrade to be confirmed", func(ctx context.Context) error {
		o, done, err := get(ctx, "rescue-up")
		if err == nil && (done == nil || done.Reason != v1alpha1.OperationConfirmed) {
			err = fmt.Errorf("status is %+v", o.Status)
		}
		return err
	})
	if o, _, _ := get(t.Context(), "rescue-up"); o.Status.Upgrade == nil || o.Status.Upgrade.Digest != target.Digest || o.Status.Upgrade.Starts != 1 {
		t.Errorf("status is %+v", o.Status)
	}
	cluster.Eventually(t, "the operation that had to wait", func(ctx context.Context) error {
		o, _, err := get(ctx, "rescue-later")
		if err == nil && o.Status.CompletedAt == nil {
			err = fmt.Errorf("status is %+v", o.Status)
		}
		return err
	})
}
