package edged

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/klog/v2"
	allocationstate "k8s.io/kubernetes/pkg/kubelet/allocation/state"
	"k8s.io/kubernetes/pkg/kubelet/checkpointmanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	cpustate "k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state"
	drastate "k8s.io/kubernetes/pkg/kubelet/cm/dra/state"
	memorystate "k8s.io/kubernetes/pkg/kubelet/cm/memorymanager/state"
)

// Files of the kubelet's CPU and memory managers. cpuState is written by each kubelet at its first
// start.
const (
	cpuState    = "cpu_manager_state"
	memoryState = "memory_manager_state"
)

// dropState deletes the files that would end each start of the kubelet: damaged ones, those of
// another policy, and those of a machine with other CPUs or memory. Each is judged by the kubelet's
// own code. The kubelet makes them again: what it loses are the CPUs and memory that containers
// have, which it assigns again when it admits their pods, sizes of pods that were resized in place,
// and prepared ResourceClaims, which it prepares again. Upstream's remedy is the same deletion by
// hand.
func (m *Module) dropState(ctx context.Context) error {
	s, logger := m.server, klog.FromContext(ctx)
	root := m.RootDir()
	managers, err := newStatic(ctx, s, m.machine)
	if err != nil {
		return err
	}
	files := map[string]judge{
		filepath.Join(root, cpuState): func(dir, name string) error {
			_, err := cpustate.NewCheckpointState(logger, dir, name, s.CPUManagerPolicy, containermap.NewContainerMap())
			return err
		},
		filepath.Join(root, memoryState): func(dir, name string) error {
			_, err := memorystate.NewCheckpointState(logger, dir, name, s.MemoryManagerPolicy)
			return err
		},
		filepath.Join(root, "dra_manager_state"): func(dir, name string) error {
			c := &drastate.Checkpoint{}
			if err := load(dir, name, c); err != nil {
				return err
			}
			_, err := c.GetClaimInfoStateList()
			return err
		},
		filepath.Join(root, "allocated_pods_state"): loadPods,
		filepath.Join(root, "actuated_pods_state"):  loadPods,
		filepath.Join(s.CertDirectory, "kubelet-server-current.pem"): func(dir, name string) error {
			pair := filepath.Join(dir, name)
			_, err := tls.LoadX509KeyPair(pair, pair)
			return err
		},
	}
	if !s.ServerTLSBootstrap && s.TLSCertFile == "" { // then it has made a pair of its own, by two writes
		pair := func(dir, _ string) error {
			_, err := tls.LoadX509KeyPair(filepath.Join(dir, "kubelet.crt"), filepath.Join(dir, "kubelet.key"))
			return err
		}
		files[filepath.Join(s.CertDirectory, "kubelet.crt")], files[filepath.Join(s.CertDirectory, "kubelet.key")] = pair, pair
	}
	if managers.cpu != nil {
		files[filepath.Join(root, cpuState)] = managers.cpu
	}
	if managers.memory != nil {
		files[filepath.Join(root, memoryState)] = managers.memory
	}
	mappings, err := filepath.Glob(filepath.Join(root, "pods", "*", "userns"))
	if err != nil {
		return fmt.Errorf("looking for user namespaces of pods: %w", err)
	}
	for _, file := range mappings {
		files[file] = jsonObject
	}
	var errs []error
	for file, use := range files {
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			continue // a check would make it
		}
		unusable := use(filepath.Dir(file), filepath.Base(file))
		if unusable == nil {
			continue
		}
		if err := os.Remove(file); err != nil {
			errs = append(errs, fmt.Errorf("%s keeps the kubelet from starting (%w): delete it", file, errors.Join(unusable, err)))
			continue
		}
		logger.Error(unusable, "Deleted a file with which the kubelet would not start: it makes a new one", "file", file)
		m.notes.add(ctx, "KubeletStateReset", fmt.Sprintf("deleted the kubelet's file %s, with which it would not start: %v", filepath.Base(file), unusable))
	}
	return errors.Join(errs...)
}

func load(dir, name string, into checkpointmanager.Checkpoint) error {
	all, err := checkpointmanager.NewCheckpointManager(dir)
	if err != nil {
		return err
	}
	return all.GetCheckpoint(name, into)
}

func loadPods(dir, name string) error {
	c := &allocationstate.Checkpoint{}
	if err := load(dir, name, c); err != nil {
		return err
	}
	_, err := c.GetPodResourceCheckpointInfo()
	return err
}

// jsonObject judges a file of which the kubelet takes an empty one for none.
func jsonObject(dir, name string) error {
	raw, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil || len(raw) == 0 {
		return err
	}
	var object map[string]any
	return json.Unmarshal(raw, &object)
}
