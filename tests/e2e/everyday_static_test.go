package e2e_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	cpustate "k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state"
	"k8s.io/utils/cpuset"
)

// TestEveryday_28: a device with the kubelet's CPU policy static boots without a link with other
// CPUs than before. Played: the other CPUs, by a state file of a machine with 64. Its pods run
// again, and the device and an event name the file.
func TestEveryday_28_BootWithOtherCPUs(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	set := func(ctx context.Context, policy, reserved string) error {
		return s.Trial.Set(ctx, "edge1", []string{"modules.edged.kubelet.cpuManagerPolicy=" + policy, "modules.edged.kubelet.reservedSystemCPUs=" + reserved})
	}
	t.Cleanup(func() {
		if err := set(context.WithoutCancel(t.Context()), "none", `""`); err != nil {
			t.Error(err)
		}
	})
	s.Check(set(t.Context(), "static", `"0"`))
	s.WaitReady("edge1", true)
	s.Apply(ns, samplePod("till", "edge1"))
	till := s.WaitPods(ns, "app=till", "edge1", 1)[0]

	state, err := cpustate.NewCheckpointState(klog.Background(), s.path("edge1", "/var/lib/kubelet"), "cpu_manager_state", "static", containermap.NewContainerMap())
	s.Check(err)
	var cpus []int
	for cpu := range 64 {
		cpus = append(cpus, cpu)
	}
	state.SetDefaultCPUSet(cpuset.New(cpus...)) // it is written
	s.Reboot("edge1", true)
	s.waitRunsAgain("edge1", till)
	s.WaitFor("the device to name the file", func(ctx context.Context) error {
		var d struct{ KubeletNotes []string }
		if err := s.EdgeStatus(ctx, "edge1", &d); err != nil {
			return err
		}
		if notes := strings.Join(d.KubeletNotes, "\n"); !strings.Contains(notes, "cpu_manager_state") || !strings.Contains(notes, "0-63") {
			return errors.New("the notes: " + notes)
		}
		out, err := s.TryEdgeKubectl(ctx, "edge1", "get", "events", "-A", "--field-selector", "reason=KubeletStateReset", "-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(out, "cpu_manager_state") {
			err = errors.New("the events: " + out)
		}
		return err
	})
	s.Heal("edge1")
	s.WaitReady("edge1", true)
}
