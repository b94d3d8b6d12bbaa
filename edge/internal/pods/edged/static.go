package edged

import (
	"context"
	"fmt"
	"maps"
	"math"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet/cadvisor"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	cpustate "k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/topology"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/eviction"
	evictionapi "k8s.io/kubernetes/pkg/kubelet/eviction/api"
	"k8s.io/utils/cpuset"
)

// A judge returns the error with which the kubelet would refuse its state file, nil for one with
// which it starts.
type judge func(dir, name string) error

// static are the kubelet's CPU and memory managers with the policies static, which start only on
// the machine that their state files describe: with other CPUs (a resized virtual machine, one
// switched off) or other memory (also by a few pages, as with another kernel) the kubelet exits.
type static struct{ cpu, memory judge } // nil: with another policy

// newStatic makes the managers as the kubelet does. Its error keeps the kubelet from starting on
// this machine with any state.
func newStatic(ctx context.Context, s *options.KubeletServer, read func() (*machineInfo, error)) (j static, err error) {
	withCPU, withMemory := s.CPUManagerPolicy == string(cpumanager.PolicyStatic), s.MemoryManagerPolicy == string(memorymanager.PolicyTypeStatic)
	if !withCPU && !withMemory {
		return static{}, nil
	}
	logger := klog.FromContext(ctx)
	m, err := read()
	if err != nil {
		return static{}, fmt.Errorf("reading this machine's CPUs and memory: %w", err)
	}
	topologies, err := newTopologyManager(logger, m, s)
	if err != nil {
		return static{}, fmt.Errorf("the kubelet's topology manager refuses this machine: %w; change modules.edged.kubelet.topologyManagerPolicy", err)
	}
	reserved, specific, err := reservedOf(s, cadvisor.CapacityFromMachineInfo(m))
	if err != nil {
		return static{}, err
	}
	if withCPU {
		policy, err := cpuPolicy(logger, s, m, reserved, specific, topologies)
		if err != nil {
			return static{}, fmt.Errorf("the kubelet's CPU manager refuses this machine: %w; change modules.edged.kubelet.reservedSystemCPUs, "+
				"systemReserved, kubeReserved or cpuManagerPolicy", err)
		}
		j.cpu = func(dir, name string) error {
			state, err := cpustate.NewCheckpointState(logger, dir, name, s.CPUManagerPolicy, containermap.NewContainerMap())
			if err != nil {
				return err
			}
			return policy.Start(logger, state)
		}
	}
	if withMemory {
		start := func(dir string) (memorymanager.Manager, error) {
			return memorymanager.NewManager(logger, s.MemoryManagerPolicy, m, reserved, s.ReservedMemory, dir, topologies)
		}
		if _, err := start(s.RootDirectory); err != nil {
			return static{}, fmt.Errorf("the kubelet's memory manager refuses this machine: %w; change modules.edged.kubelet.reservedMemory, "+
				"systemReserved, kubeReserved, evictionHard or memoryManagerPolicy", err)
		}
		j.memory = func(dir, _ string) error {
			manager, err := start(dir)
			if err != nil {
				return err
			}
			return manager.Start(ctx, nil, nil, nil, nil, containermap.NewContainerMap()) // starts nothing that runs on
		}
	}
	return j, nil
}

// cpuPolicy is the policy static as the kubelet's CPU manager makes it (cpumanager.NewManager). The
// manager itself would start a loop without an end.
func cpuPolicy(logger klog.Logger, s *options.KubeletServer, m *machineInfo, reserved corev1.ResourceList, specific cpuset.CPUSet, topologies topologymanager.Store) (cpumanager.Policy, error) {
	if _, err := cpumanager.NewManager(logger, s.CPUManagerPolicy, s.CPUManagerPolicyOptions, s.CPUManagerReconcilePeriod.Duration, m, specific, reserved, s.RootDirectory, topologies); err != nil {
		return nil, err
	}
	found, err := topology.Discover(logger, m)
	if err != nil {
		return nil, err
	}
	cpus := int(math.Ceil(float64(reserved.Cpu().MilliValue()) / 1000))
	return cpumanager.NewStaticPolicy(logger, found, cpus, specific, topologies, s.CPUManagerPolicyOptions)
}

// reservedOf is what the kubelet keeps from pods of a machine with that capacity, as its command
// and its container manager compute it (app.run, GetNodeAllocatableReservation), of CPUs, memory
// and disk; specific are the CPUs themselves, empty where only their number is set.
func reservedOf(s *options.KubeletServer, capacity corev1.ResourceList) (reserved corev1.ResourceList, specific cpuset.CPUSet, err error) {
	if specific, err = cpuset.Parse(s.ReservedSystemCPUs); err != nil {
		return nil, specific, fmt.Errorf("modules.edged.kubelet.reservedSystemCPUs: %w", err)
	}
	system, kube := maps.Clone(s.SystemReserved), maps.Clone(s.KubeReserved)
	if specific.Size() > 0 {
		if system == nil {
			system = map[string]string{}
		}
		delete(kube, string(corev1.ResourceCPU))
		system[string(corev1.ResourceCPU)] = strconv.Itoa(specific.Size())
	}
	reserved = corev1.ResourceList{}
	add := func(name corev1.ResourceName, value resource.Quantity) {
		sum := reserved[name]
		sum.Add(value)
		if !sum.IsZero() {
			reserved[name] = sum
		}
	}
	for _, list := range []map[string]string{system, kube} {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
			text := list[string(name)]
			if text == "" {
				continue
			}
			value, err := resource.ParseQuantity(text)
			if err != nil {
				return nil, specific, fmt.Errorf("modules.edged.kubelet: reserved %s: %w", name, err)
			}
			add(name, value)
		}
	}
	if s.ExperimentalNodeAllocatableIgnoreEvictionThreshold {
		return reserved, specific, nil
	}
	thresholds, err := eviction.ParseThresholdConfig(nil, s.EvictionHard, nil, nil, nil)
	if err != nil {
		return nil, specific, fmt.Errorf("modules.edged.kubelet.evictionHard: %w", err)
	}
	of := map[evictionapi.Signal]corev1.ResourceName{
		evictionapi.SignalMemoryAvailable: corev1.ResourceMemory, evictionapi.SignalNodeFsAvailable: corev1.ResourceEphemeralStorage,
	}
	for _, t := range thresholds {
		name, reserves := of[t.Signal]
		if whole := capacity[name]; reserves && t.Operator == evictionapi.OpLessThan {
			add(name, *evictionapi.GetThresholdQuantity(t.Value, &whole))
		}
	}
	return reserved, specific, nil
}
