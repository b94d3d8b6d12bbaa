// Package fleet_test rolls operations out to a thousand devices: the real cloudcore with the rights
// of its manifests, a real kube-apiserver, and links of hollow devices, which report what a device
// would.
package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/process"
	"github.com/skerry-io/skerry/tests/hollow"
)

const devices = 1000

// system is a cloudcore with hollow devices.
type system struct {
	t     *testing.T
	audit string
	plane *cluster.ControlPlane
	sets  dynamic.ResourceInterface
	fleet *hollow.Fleet

	mu      sync.Mutex
	touched map[string]bool // the devices that got the operation
}

func newSystem(t *testing.T) *system {
	s := &system{t: t, audit: filepath.Join(t.TempDir(), "audit.log"), touched: map[string]bool{}}
	s.plane = cluster.Own(t, "--audit="+s.audit)
	s.plane.Apply(t, "manifests/crds")
	s.plane.Apply(t, "manifests/cloudcore")
	admin, err := dynamic.NewForConfig(s.plane.Admin())
	if err != nil {
		t.Fatal(err)
	}
	s.sets = admin.Resource(v1alpha1.Resource(v1alpha1.NodeOperationSets))
	links := s.cloudcore()
	host, port, _ := net.SplitHostPort(links)
	number, _ := strconv.Atoi(port)
	roots, err := hollow.Roots(t.Context(), s.plane.Client())
	if err != nil {
		t.Fatal(err)
	}
	s.fleet, err = hollow.New(hollow.Config{
		Nodes: devices, Server: host, Port: number, Roots: roots, Identity: hollow.FromCA(s.plane.CAFile(), s.plane.CAKeyFile()),
		Operate: hollow.Ends(func(node string, _ *v1alpha1.NodeOperation) string {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.touched[node] = true
			return v1alpha1.OperationRolledBack
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.fleet.Allow(t.Context(), s.plane.Client()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(context.WithoutCancel(t.Context()), klog.New(nil)))
	done := make(chan error, 1)
	go func() { done <- s.fleet.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	patient, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	if err := s.fleet.AwaitWhole(patient); err != nil {
		t.Fatal(err)
	}
	return s
}

// cloudcore starts the program, and returns its address for links.
func (s *system) cloudcore() (links string) {
	t := s.t
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	programs, err := binary.Build(t.Context(), root, "cloudcore")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	kubeconfig, file := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "cloudcore.yaml")
	s.plane.AccountKubeconfig(t, "cloudcore", kubeconfig)
	links = cluster.FreeAddress(t, "tcp")
	health := cluster.FreeAddress(t, "tcp")
	config := fmt.Sprintf("apiVersion: config.skerry.io/v1alpha1\nkind: CloudCore\nkubeconfig: %s\nhealth: {listen: %q}\ntunnel: {listen: \"\"}\ndevices: {listen: \"\"}\n"+
		"advertise: [127.0.0.1]\nhub: {websocket: {listen: %q}}\n", kubeconfig, health, links)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cluster.StartProgram(t, "cloudcore", process.Spec{Path: programs[0], Args: []string{"--config", file}, Log: filepath.Join(dir, "log")}, 30*time.Second)
	cluster.WaitReady(t, "cloudcore", health)
	return links
}

// soak is how long the canary must be well before the next wave.
const soak = 3 * time.Second

// apply applies the set: first the canary, then many devices at once.
func (s *system) apply(parallel int64) {
	s.t.Helper()
	spec := map[string]any{
		"template":     map[string]any{"operation": "Upgrade", "upgrade": map[string]any{"version": "v9.9.9"}},
		"nodeSelector": map[string]any{}, "maxParallel": parallel,
		"waves": []any{map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"canary": "yes"}}, "soak": soak.String()}},
	}
	_, err := s.sets.Apply(s.t.Context(), "edgecore", &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.SchemeGroupVersion.String(), "kind": "NodeOperationSet", "metadata": map[string]any{"name": "edgecore"},
		"spec": spec,
	}}, metav1.ApplyOptions{FieldManager: "test", Force: true})
	if err != nil {
		s.t.Fatal(err)
	}
}

// await waits until the set's condition Ready has a reason, for its newest generation.
func (s *system) await(reason string) (status v1alpha1.NodeOperationSetStatus) {
	s.t.Helper()
	cluster.Eventually(s.t, "the set to be "+reason, func(ctx context.Context) error {
		u, err := s.sets.Get(ctx, "edgecore", metav1.GetOptions{})
		if err != nil {
			return err
		}
		var set v1alpha1.NodeOperationSet
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &set); err != nil {
			return err
		}
		status = set.Status
		c := meta.FindStatusCondition(status.Conditions, v1alpha1.SetReady)
		if c == nil || status.ObservedGeneration != set.Generation || c.Reason != reason {
			return errors.New(fmt.Sprint("it is ", status.Progress, " ", status.Conditions))
		}
		return nil
	})
	return status
}

// created is how many NodeOperations kube-apiserver has created.
func (s *system) created() int {
	s.t.Helper()
	return len(cluster.ReadAudit(s.t, s.audit, func(r cluster.Request) bool {
		return r.Verb == "create" && r.ObjectRef.Resource == v1alpha1.NodeOperations && r.ObjectRef.Subresource == "" && r.ResponseStatus.Code < 300
	}))
}

// A version that goes back on the canary reaches no other of a thousand devices, though all of them
// are linked and a wave may have 500 at once.
func TestFleet_17_BadCanaryStopsTheRollout(t *testing.T) {
	s := newSystem(t)
	canary := "hollow-" + strconv.Itoa(devices/2)
	if _, err := s.plane.Client().CoreV1().Nodes().Patch(t.Context(), canary, types.MergePatchType, []byte(`{"metadata":{"labels":{"canary":"yes"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.apply(500)
	status := s.await("FailureThreshold")
	if status.Matched != devices || status.Failed != 1 || len(status.Failures) != 1 || status.Failures[0].Node != canary || status.Failures[0].Reason != v1alpha1.OperationRolledBack {
		t.Errorf("its status is %+v", status)
	}
	s.only(canary)
	// Nor when the time of the canary's wave is over, and the set is looked at once more.
	failed := time.Now()
	cluster.Eventually(t, "the canary's soak to pass", func(context.Context) error {
		if left := time.Until(failed.Add(soak)); left > 0 {
			return fmt.Errorf("%v are left", left)
		}
		return nil
	})
	s.apply(400)
	s.await("FailureThreshold")
	s.only(canary)
}

// only checks that no other device has been touched, and by one operation.
func (s *system) only(node string) {
	s.t.Helper()
	if n := s.created(); n != 1 {
		s.t.Errorf("%d operations were made", n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.touched) != 1 || !s.touched[node] {
		s.t.Errorf("%d devices were touched", len(s.touched))
	}
}
