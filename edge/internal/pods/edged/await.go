package edged

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/node/util/sysctl"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet"

	"github.com/skerry-io/skerry/edge/internal/pods/cri"
)

const (
	// retryInterval is the interval of checks of the kubelet's needs; sayInterval that of repeated
	// logs of an unchanged reason.
	retryInterval = time.Second
	sayInterval   = 30 * time.Second
)

// A need is a precondition of the kubelet's start. Upstream ends the process when one is missing,
// which under a supervisor is a crash loop; here it is logged and waited for, as most of them are
// met without intervention (containerd starts later, the link comes up) or by the action in the
// message.
type need func(ctx context.Context) error

// await returns when every need is met; its error is ctx's end.
func (m *Module) await(ctx context.Context) error {
	client, err := m.clients()
	if err != nil {
		return err
	}
	needs := []need{
		m.hold,
		func(context.Context) error { return cgroups(cgroupRoot, m.server.FailCgroupV1) },
		func(context.Context) error { return swapOff(swapsFile, m.server.FailSwapOn) },
		func(context.Context) error {
			return kernelDefaults(m.server.ProtectKernelDefaults, sysctl.New().GetSysctl)
		},
		func(context.Context) error { return writable(m.RootDir()) },
		func(context.Context) error {
			return room(m.server, m.machine, func() (uint64, error) {
				size, _, err := diskSpace(m.RootDir())
				return size, err
			})
		},
		func(context.Context) error { return logDirectories(m.server.PodLogsDir, kubelet.ContainerLogsDir) },
		func(ctx context.Context) error { return runtimeReachable(ctx, m.runtime) },
		func(ctx context.Context) error { return cri.Serves(ctx, m.runtime) },
		func(context.Context) error { return m.portsFree() },
		func(ctx context.Context) error { return m.synced(ctx, client.kube) },
	}
	if m.config.ImageService != "" {
		needs = append(needs, m.imagesReachable)
	}
	for _, n := range m.config.Needs {
		needs = append(needs, n)
	}
	return m.awaitAll(ctx, append(needs, m.dropState))
}

func (m *Module) hold(ctx context.Context) error {
	if m.config.Hold == nil {
		return nil
	}
	return m.config.Hold(ctx)
}

func (m *Module) awaitAll(ctx context.Context, needs []need) error {
	defer m.wait(nil)
	logger := klog.FromContext(ctx)
	ticker := time.NewTicker(retryInterval)
	defer ticker.Stop()
	var said string
	var at time.Time
	for {
		err := first(ctx, needs)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			return nil
		}
		m.wait(err)
		if err.Error() != said || time.Since(at) >= sayInterval {
			logger.Error(err, "Delaying the kubelet; running containers are not affected")
			said, at = err.Error(), time.Now()
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

func first(ctx context.Context, needs []need) error {
	for _, n := range needs {
		if err := n(ctx); err != nil {
			return err
		}
	}
	return nil
}

// lookupTime is the time that a lookup of the node's own name may take without a warning: from
// /etc/hosts it takes less than a millisecond.
const lookupTime = time.Second

// advise warns of a slow lookup, which costs a disconnected device 10 s at each node status:
// upstream looks the node's own name up each time unless an address is configured, and an
// unreachable DNS server does not answer.
func (m *Module) advise(ctx context.Context, lookup func(ctx context.Context, host string) ([]string, error)) {
	if m.config.NodeIP != "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	if _, err := lookup(ctx, m.config.NodeName); err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		klog.FromContext(ctx).Info("Looking up this node's own name is slow, which delays the kubelet",
			"name", m.config.NodeName, "do", "add the name to /etc/hosts, or set modules.edged.nodeIP")
	}
}

// cgroupRoot is where the kernel shows cgroups.
const cgroupRoot = "/sys/fs/cgroup"

// cgroups refuses version 1, as the kubelet does with its default.
func cgroups(root string, fail bool) error {
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil || !fail {
		return nil
	}
	return errors.New("this machine has cgroups of version 1: boot with version 2 (systemd.unified_cgroup_hierarchy=1), or set modules.edged.kubelet.failCgroupV1: false")
}

// swapsFile is where the kernel lists swap: a line for each, below a heading.
const swapsFile = "/proc/swaps"

// swapOff refuses swap, as the kubelet does with its default (NewContainerManager): a machine whose
// swap was switched on while it was off would restart edgecore again and again.
func swapOff(file string, fail bool) error {
	if !fail {
		return nil
	}
	data, err := os.ReadFile(file)
	switch {
	case errors.Is(err, os.ErrNotExist): // a kernel without swap
		return nil
	case err != nil:
		return fmt.Errorf("reading whether swap is on: %w", err)
	case strings.Contains(strings.TrimSpace(string(data)), "\n"):
		return errors.New("swap is on: swapoff -a, and remove it from /etc/fstab; or set modules.edged.kubelet.failSwapOn: false")
	}
	return nil
}

// writable makes the directory where it is missing, and writes into it.
func writable(dir string) error {
	err := os.MkdirAll(dir, 0o750)
	if err == nil {
		var f *os.File
		if f, err = os.CreateTemp(dir, ".edged-"); err == nil {
			_, err = f.Write([]byte("x"))
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}
	switch {
	case errors.Is(err, syscall.ENOSPC) && kubeletRan(dir):
		return nil
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("the disk of %s is full; make room, or set modules.edged.rootDir to another disk: %w", dir, err)
	case err != nil:
		return fmt.Errorf("the kubelet's directory %s can't be written; mend that, or set modules.edged.rootDir: %w", dir, err)
	}
	return nil
}

// kubeletRan reports whether a kubelet has made its files in a directory. Such a kubelet needs no
// room to start, and makes some: it removes dead containers and unused images, and evicts pods.
func kubeletRan(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, cpuState))
	return err == nil
}

// logDirectories makes the directories of containers' logs where they are missing, as the kubelet
// does, which ends if it can't (Kubelet.initializeModules). They may be on a disk of their own.
func logDirectories(pods, containers string) error {
	for dir, mode := range map[string]os.FileMode{pods: 0o750, containers: 0o755} {
		if err := os.MkdirAll(dir, mode); err != nil {
			return fmt.Errorf("the directory %s of containers' logs can't be made; make room on its disk, or mount it to be written: %w", dir, err)
		}
	}
	return nil
}

// runtimeReachable checks whether the socket accepts.
func runtimeReachable(ctx context.Context, endpoint string) error {
	network, address := "unix", endpoint
	if scheme, rest, ok := strings.Cut(endpoint, "://"); ok {
		network, address = scheme, rest
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return fmt.Errorf("containerd is not running at %s; start it, or set modules.edged.kubelet.containerRuntimeEndpoint: %w", endpoint, err)
	}
	return conn.Close()
}

// imagesReachable checks that edgecore's own image service accepts: without one the kubelet ends.
func (m *Module) imagesReachable(ctx context.Context) error {
	if err := runtimeReachable(ctx, m.config.ImageService); err != nil {
		return fmt.Errorf("edgecore does not serve images yet: %w", errors.Unwrap(err))
	}
	return nil
}

// portsFree finds out that the kubelet could listen. Its own server ends the process where
// it can't.
func (m *Module) portsFree() error {
	s := m.server
	ports := []struct {
		field, address string
		port           int32
	}{
		{"port", s.Address, s.Port},
		{"readOnlyPort", s.Address, s.ReadOnlyPort},
		{"healthzPort", s.HealthzBindAddress, s.HealthzPort},
	}
	for _, p := range ports {
		if p.port <= 0 {
			continue
		}
		address := net.JoinHostPort(p.address, strconv.Itoa(int(p.port)))
		l, err := net.Listen("tcp", address)
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			return fmt.Errorf("%s is in use by another process (another kubelet?); stop it, or set modules.edged.kubelet.%s: %w", address, p.field, err)
		case err != nil:
			return fmt.Errorf("the kubelet can't listen on %s; set modules.edged.kubelet.%s or its address: %w", address, p.field, err)
		}
		if err := l.Close(); err != nil {
			return fmt.Errorf("closing %s: %w", address, err)
		}
	}
	return nil
}

var errFirstContact = errors.New("waiting for the cloud to send this device's pods for the first time; it needs a link once (see edgecore status)")

// synced makes the kubelet's own first requests, with the same selectors: its Node and its pods. A
// kubelet may start only if both can be answered: one that receives an empty list would end the
// running pods. The kubelet would wait too, but silently, and for the pods only.
func (m *Module) synced(ctx context.Context, client kubernetes.Interface) error {
	name := m.config.NodeName
	options := func(field string) metav1.ListOptions {
		return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(field, name).String(), ResourceVersion: "0"}
	}
	_, err := client.CoreV1().Nodes().List(ctx, options("metadata.name"))
	if err == nil {
		_, err = client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, options("spec.nodeName"))
	}
	switch {
	case err == nil:
		return nil
	case apierrors.IsServiceUnavailable(err):
		return fmt.Errorf("%w: %w", errFirstContact, err)
	default:
		return fmt.Errorf("asking the device's API for the node and its pods: %w", err)
	}
}
