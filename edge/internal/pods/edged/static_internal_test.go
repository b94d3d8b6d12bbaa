package edged

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// machineOf is a machine with one NUMA node, CPUs by their numbers and memory in MiB.
func machineOf(t *testing.T, memory int, cpus ...int) func() (*machineInfo, error) {
	t.Helper()
	var cores []string
	for i, cpu := range cpus {
		cores = append(cores, fmt.Sprintf(`{"core_id": %d, "thread_ids": [%d], "socket_id": 0}`, i, cpu))
	}
	m := &machineInfo{}
	check(t, json.Unmarshal(fmt.Appendf(nil, `{"num_cores": %d, "num_sockets": 1, "memory_capacity": %d, "topology": [{"node_id": 0, "memory": %d, "cores": [%s]}]}`,
		len(cpus), memory<<20, memory<<20, strings.Join(cores, ",")), m))
	return func() (*machineInfo, error) { return m, nil }
}

const staticPolicies = `{failCgroupV1: false, cpuManagerPolicy: static, memoryManagerPolicy: Static, topologyManagerPolicy: best-effort,
reservedSystemCPUs: "0", systemReserved: {memory: 400Mi}, evictionHard: {memory.available: 100Mi},
reservedMemory: [{numaNode: 0, limits: {memory: 500Mi}}]}`

// With the policies static a kubelet starts only on the machine that its files describe: the files
// of another one are deleted, reported, and replaced by the kubelet's own.
func TestEveryday_28_StateOfAnotherMachine(t *testing.T) {
	was := machineOf(t, 4096, 0, 1, 2, 3)
	for name, test := range map[string]struct {
		now     func() (*machineInfo, error)
		kubelet string // configuration; "": staticPolicies
		kept    []string
		deleted []string // parts of the reports
		refused string   // part of the reason that no kubelet starts
	}{
		"the same":           {now: was, kept: []string{cpuState, memoryState}},
		"a CPU fewer":        {now: machineOf(t, 4096, 0, 1, 2), kept: []string{memoryState}, deleted: []string{cpuState}},
		"another CPU":        {now: machineOf(t, 4096, 0, 1, 2, 4), kept: []string{memoryState}, deleted: []string{cpuState}},
		"more of both":       {now: machineOf(t, 8192, 0, 1, 2, 3, 4, 5), deleted: []string{cpuState, memoryState}},
		"another kernel":     {now: machineOf(t, 4095, 0, 1, 2, 3), kept: []string{cpuState}, deleted: []string{memoryState}},
		"without static":     {now: machineOf(t, 8192, 0), kubelet: "{failCgroupV1: false}", deleted: []string{cpuState, memoryState}},
		"no reserved CPU":    {now: machineOf(t, 4096, 1, 2), kept: []string{cpuState, memoryState}, refused: "reservedSystemCPUs"},
		"unreadable machine": {now: func() (*machineInfo, error) { return nil, errors.New("no clock") }, kept: []string{cpuState, memoryState}, refused: "no clock"},
		"evicts by share": {
			now: was, kubelet: strings.Replace(staticPolicies, "available: 100Mi", "available: 5%", 1), kept: []string{cpuState, memoryState}, refused: "reservedMemory",
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			module := func(kubelet string) *Module {
				m, err := New(Config{NodeName: "a", RootDir: root, CertDir: filepath.Join(root, "pki"), Kubelet: []byte(kubelet)})
				check(t, err)
				return m
			}
			m := module(staticPolicies)
			first, err := newStatic(t.Context(), m.server, was)
			check(t, err)
			check(t, first.cpu(root, cpuState)) // the kubelet's first start
			check(t, first.memory(root, memoryState))

			if test.kubelet != "" {
				m = module(test.kubelet)
			}
			m.machine = test.now
			err = m.dropState(t.Context())
			switch {
			case test.refused == "":
				check(t, err)
			case err == nil || !strings.Contains(err.Error(), test.refused):
				t.Errorf("the start: %v, want a reason with %q", err, test.refused)
			}
			for _, file := range test.kept {
				if _, err := os.Stat(filepath.Join(root, file)); err != nil {
					t.Errorf("deleted %s", file)
				}
			}
			resets := strings.Join(m.Notes(), "\n")
			for _, file := range test.deleted {
				if _, err := os.Stat(filepath.Join(root, file)); !errors.Is(err, os.ErrNotExist) || !strings.Contains(resets, file) {
					t.Errorf("%s: %v, reported as %q", file, err, resets)
				}
			}
			if len(m.Notes()) != len(test.deleted) {
				t.Errorf("reported: %q", resets)
			}
			if test.refused == "" && test.kubelet == "" {
				again, err := newStatic(t.Context(), m.server, test.now)
				check(t, err)
				check(t, errors.Join(again.cpu(root, cpuState), again.memory(root, memoryState))) // the next kubelet starts
			}
		})
	}
}
