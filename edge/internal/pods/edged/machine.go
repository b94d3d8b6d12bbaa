//go:build !kubernetes1.36

package edged

import (
	"github.com/google/cadvisor/lib/fs"
	"github.com/google/cadvisor/lib/machine"
	"github.com/google/cadvisor/lib/model"
	"github.com/google/cadvisor/lib/utils/sysfs"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
)

// machineInfo is how the kubelet sees CPUs and memory.
type machineInfo = model.MachineInfo

// noDisks lists no file systems: CPUs and memory don't depend on them.
type noDisks struct{ fs.FsInfo }

// GetGlobalFsInfo implements fs.FsInfo.
func (noDisks) GetGlobalFsInfo() ([]fs.Fs, error) { return nil, nil }

func readMachine() (*machineInfo, error) {
	return machine.Info(sysfs.NewRealSysFs(), noDisks{}, true)
}

func newTopologyManager(logger klog.Logger, m *machineInfo, s *options.KubeletServer) (topologymanager.Manager, error) {
	return topologymanager.NewManager(logger, m.Topology, s.TopologyManagerPolicy, s.TopologyManagerScope, s.TopologyManagerPolicyOptions)
}
