package edged

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"
	allocationstate "k8s.io/kubernetes/pkg/kubelet/allocation/state"
	"k8s.io/kubernetes/pkg/kubelet/checkpointmanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	cpustate "k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state"
	drastate "k8s.io/kubernetes/pkg/kubelet/cm/dra/state"
	memorystate "k8s.io/kubernetes/pkg/kubelet/cm/memorymanager/state"
)

// Files of the kubelet that it can read stay; without any it makes its own; those with which it
// would not start are deleted, and no others.
func TestDropState(t *testing.T) {
	logger := klog.Background()
	states := []string{"actuated_pods_state", "allocated_pods_state", "cpu_manager_state", "dra_manager_state", "memory_manager_state"}
	// good writes all states by the kubelet's own code.
	good := func(t *testing.T, root string) {
		t.Helper()
		_, err := cpustate.NewCheckpointState(logger, root, "cpu_manager_state", "none", containermap.NewContainerMap())
		check(t, err)
		_, err = memorystate.NewCheckpointState(logger, root, "memory_manager_state", "None")
		check(t, err)
		all, err := checkpointmanager.NewCheckpointManager(root)
		check(t, err)
		claims, err := drastate.NewCheckpoint(nil)
		check(t, err)
		check(t, all.CreateCheckpoint("dra_manager_state", claims))
		for _, name := range states[:2] {
			sizes, err := allocationstate.NewCheckpoint(&allocationstate.PodResourceCheckpointInfo{})
			check(t, err)
			check(t, all.CreateCheckpoint(name, sizes))
		}
		check(t, os.MkdirAll(filepath.Join(root, "pods", "a"), 0o700))
		check(t, os.WriteFile(filepath.Join(root, "pods", "a", "userns"), []byte(`{"uidMappings":[]}`), 0o600))
		check(t, os.WriteFile(filepath.Join(root, "foreign"), []byte("x"), 0o600))
	}
	all := append([]string{"foreign", "pods/a/userns"}, states...)
	slices.Sort(all)
	without := func(names ...string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(n string) bool { return slices.Contains(names, n) })
	}
	spoil := func(text string, names ...string) func(t *testing.T, root string) {
		return func(t *testing.T, root string) {
			good(t, root)
			for _, name := range names {
				check(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o700))
				check(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o600))
			}
		}
	}
	every := append([]string{"foreign", "pods/a/userns"}, states...)
	for name, test := range map[string]struct {
		kubelet string
		before  func(t *testing.T, root string)
		want    []string
	}{
		"none":              {"", func(*testing.T, string) {}, nil},
		"good":              {"", good, all},
		"empty":             {"", spoil("", every...), without(states...)},
		"damaged":           {"", spoil("\x00\x00", every...), without(append([]string{"pods/a/userns"}, states...)...)},
		"wrong checksum":    {"", spoil(`{"data":"{}","checksum":1}`, states[:2]...), without(states[:2]...)},
		"of another format": {"", spoil(`{"data":{"policyName":"none","x":1},"dataChecksum":7}`, "cpu_manager_state"), without("cpu_manager_state")},
		"another policy":    {"cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"", good, without("cpu_manager_state")},
		"half a pair":       {"serverTLSBootstrap: false", spoil("-----BEGIN CERTIFICATE-----", "pki/kubelet.crt"), all},
		"a pair not in use": {"", spoil("-----BEGIN CERTIFICATE-----", "pki/kubelet.crt"), slices.Sorted(slices.Values(append(slices.Clone(all), "pki/kubelet.crt")))},
		"half a server key": {"", spoil("-----BEGIN CERTIFICATE-----", "pki/kubelet-server-current.pem"), all},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			test.before(t, root)
			m, err := New(Config{NodeName: "a", RootDir: root, Kubelet: []byte(test.kubelet)})
			check(t, err)
			check(t, m.dropState(t.Context()))
			var got []string
			for _, pattern := range []string{"*", "pki/*", "pods/a/*"} {
				found, err := filepath.Glob(filepath.Join(root, pattern))
				check(t, err)
				for _, f := range found {
					if info, err := os.Stat(f); err == nil && info.Mode().IsRegular() {
						rel, err := filepath.Rel(root, f)
						check(t, err)
						got = append(got, rel)
					}
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
		})
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
