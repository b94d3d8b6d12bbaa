//go:build kubernetes1.36

package edged

import (
	"github.com/google/cadvisor/fs"
	"github.com/google/cadvisor/info/v1"
	"github.com/google/cadvisor/machine"
	"github.com/google/cadvisor/utils/sysfs"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
)

// machineInfo is how the kubelet sees CPUs and memory.
type machineInfo = v1.MachineInfo

// noDisks lists no file systems: CPUs and memory don't depend on them.
type noDisks struct{ fs.FsInfo }

// GetGlobalFsInfo implements fs.FsInfo.
func (noDisks) GetGlobalFsInfo() ([]fs.Fs, error) { return nil, nil }

func readMachine() (*machineInfo, error) {
	return machine.Info(sysfs.NewRealSysFs(), noDisks{}, true)
}

func newTopologyManager(_ klog.Logger, m *machineInfo, s *options.KubeletServer) (topologymanager.Manager, error) {
	return topologymanager.NewManager(m.Topology, s.TopologyManagerPolicy, s.TopologyManagerScope, s.TopologyManagerPolicyOptions)
}
