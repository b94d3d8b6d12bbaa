package edged

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/node/util/sysctl"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet/cadvisor"
)

// Changes of a machine while it was off with which the kubelet would exit at each start.

// kernelDefaults refuses sysctls other than the kubelet's with protectKernelDefaults, as the
// kubelet does (setupKernelTunables): a distribution's upgrade may have replaced the file that set
// them.
func kernelDefaults(protect bool, get func(name string) (int, error)) error {
	if !protect {
		return nil
	}
	wanted := []struct {
		name  string
		value int
	}{
		{sysctl.VMOvercommitMemory, sysctl.VMOvercommitMemoryAlways},
		{sysctl.VMPanicOnOOM, sysctl.VMPanicOnOOMInvokeOOMKiller},
		{sysctl.KernelPanic, sysctl.KernelPanicRebootTimeout},
		{sysctl.KernelPanicOnOops, sysctl.KernelPanicOnOopsAlways},
		{sysctl.RootMaxKeys, sysctl.RootMaxKeysSetting},
		{sysctl.RootMaxBytes, sysctl.RootMaxBytesSetting},
	}
	var wrong []string
	for _, w := range wanted {
		value, err := get(w.name)
		if err != nil {
			return fmt.Errorf("reading a sysctl that modules.edged.kubelet.protectKernelDefaults protects: %w", err)
		}
		if value != w.value {
			wrong = append(wrong, fmt.Sprintf("%s=%d", strings.ReplaceAll(w.name, "/", "."), w.value))
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("sysctls are not those of the kubelet: sysctl -w %s, and put them into /etc/sysctl.d; or set modules.edged.kubelet.protectKernelDefaults: false", strings.Join(wrong, " "))
	}
	return nil
}

// room refuses a machine with less than is reserved, as the kubelet does (validateNodeAllocatable):
// a virtual machine that has become smaller, or the kubelet's directory on a smaller disk. disk is
// the size of that disk in bytes. A machine that can't be read is left to the kubelet.
func room(s *options.KubeletServer, read func() (*machineInfo, error), disk func() (uint64, error)) error {
	m, err := read()
	if err != nil {
		return nil
	}
	capacity := cadvisor.CapacityFromMachineInfo(m)
	if s.LocalStorageCapacityIsolation {
		if size, err := disk(); err == nil {
			capacity[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(int64(size), resource.BinarySI)
		}
	}
	reserved, _, err := reservedOf(s, capacity)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		has, known := capacity[name]
		if want := reserved[name]; known && want.Cmp(has) > 0 {
			errs = append(errs, fmt.Errorf("%s of %s is reserved, and this machine has %s: lower modules.edged.kubelet.systemReserved, kubeReserved or evictionHard", want.String(), name, has.String()))
		}
	}
	return errors.Join(errs...)
}
