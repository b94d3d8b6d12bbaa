package edged

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// With protectKernelDefaults other sysctls are named before the kubelet exits because of them.
func TestKernelDefaults(t *testing.T) {
	values := map[string]int{
		"vm/overcommit_memory": 1, "vm/panic_on_oom": 0, "kernel/panic": 10, "kernel/panic_on_oops": 1,
		"kernel/keys/root_maxkeys": 1000000, "kernel/keys/root_maxbytes": 25000000,
	}
	get := func(name string) (int, error) {
		v, ok := values[name]
		if !ok {
			return 0, errors.New("no " + name)
		}
		return v, nil
	}
	check(t, kernelDefaults(true, get))
	values["kernel/panic"] = 0
	check(t, kernelDefaults(false, get))
	if err := kernelDefaults(true, get); err == nil || !strings.Contains(err.Error(), "sysctl -w kernel.panic=10,") {
		t.Errorf("another sysctl: %v", err)
	}
	delete(values, "kernel/panic")
	if err := kernelDefaults(true, get); err == nil {
		t.Error("an unreadable sysctl counts as right")
	}
}

// A machine that has less than is reserved is named.
func TestRoom(t *testing.T) {
	const reserved = `{failCgroupV1: false, systemReserved: {memory: 400Mi, cpu: 1500m}, evictionHard: {memory.available: 100Mi, nodefs.available: 10Gi}}`
	for name, test := range map[string]struct {
		kubelet string
		memory  int // MiB
		cpus    []int
		disk    uint64 // GiB
		want    string // parts of the reason
	}{
		"enough":         {reserved, 500, []int{0, 1}, 10, ""},
		"memory":         {reserved, 499, []int{0, 1}, 10, "memory"},
		"a CPU":          {reserved, 500, []int{0}, 10, "cpu"},
		"a smaller disk": {reserved, 500, []int{0, 1}, 9, "ephemeral-storage"},
		"not isolated":   {strings.Replace(reserved, "{", "{localStorageCapacityIsolation: false, ", 1), 500, []int{0, 1}, 9, ""},
		"default":        {"{failCgroupV1: false}", 512, []int{0}, 1, ""},
		"share of it":    {"{failCgroupV1: false, evictionHard: {memory.available: 5%}}", 64, []int{0}, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := New(Config{NodeName: "a", RootDir: t.TempDir(), Kubelet: []byte(test.kubelet)})
			check(t, err)
			err = room(m.server, machineOf(t, test.memory, test.cpus...), func() (uint64, error) { return test.disk << 30, nil })
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
	m, err := New(Config{NodeName: "a", Kubelet: []byte(reserved)})
	check(t, err)
	check(t, room(m.server, func() (*machineInfo, error) { return nil, errors.New("unreadable") }, nil))
}

// A credential provider whose files are missing is left out: the kubelet would exit.
func TestUsableProvider(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(t *testing.T, dir string)
		want  string // part of the reason
	}{
		"whole":      {func(*testing.T, string) {}, ""},
		"no program": {func(t *testing.T, dir string) { t.Helper(); check(t, os.Remove(filepath.Join(dir, "bin", "helper"))) }, "helper"},
		"no folder":  {func(t *testing.T, dir string) { t.Helper(); check(t, os.RemoveAll(filepath.Join(dir, "bin"))) }, "bin"},
		"no file":    {func(t *testing.T, dir string) { t.Helper(); check(t, os.RemoveAll(filepath.Join(dir, "conf"))) }, "conf"},
		"no files": {func(t *testing.T, dir string) {
			t.Helper()
			check(t, os.Remove(filepath.Join(dir, "conf", "a.yaml")))
		}, "no files"},
		"damaged": {func(t *testing.T, dir string) {
			t.Helper()
			check(t, os.WriteFile(filepath.Join(dir, "conf", "a.yaml"), []byte("\x00"), 0o600))
		}, "a.yaml"},
		"empty": {func(t *testing.T, dir string) {
			t.Helper()
			check(t, os.WriteFile(filepath.Join(dir, "conf", "a.yaml"), nil, 0o600))
		}, "no providers"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			check(t, os.MkdirAll(filepath.Join(dir, "bin"), 0o700))
			check(t, os.MkdirAll(filepath.Join(dir, "conf"), 0o700))
			check(t, os.WriteFile(filepath.Join(dir, "bin", "helper"), nil, 0o700))
			check(t, os.WriteFile(filepath.Join(dir, "conf", "a.yaml"), []byte(`{apiVersion: kubelet.config.k8s.io/v1, kind: CredentialProviderConfig, providers: [{name: helper}]}`), 0o600))
			test.spoil(t, dir)
			for _, config := range []string{filepath.Join(dir, "conf"), filepath.Join(dir, "conf", "a.yaml")} {
				err := usableProvider(config, filepath.Join(dir, "bin"))
				if test.want == "no files" && config != filepath.Join(dir, "conf") {
					continue
				}
				if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
					t.Errorf("%s: %v, want %q", config, err, test.want)
				}
			}
		})
	}
	check(t, usableProvider("", ""))
}

// A configured certificate that can't be used is replaced by one of the cluster.
func TestLeaveOut(t *testing.T) {
	m, err := New(Config{NodeName: "a", Kubelet: []byte("{failCgroupV1: false, tlsCertFile: /none.crt, tlsPrivateKeyFile: /none.key}"),
		ImageCredentialProviderConfig: "/none", ImageCredentialProviderBinDir: "/none"})
	check(t, err)
	left := leaveOut(m.server)
	for _, reason := range []string{"CredentialProviderMissing", "KubeletCertificateUnusable"} {
		if left[reason] == "" {
			t.Errorf("%s: left out are %v", reason, left)
		}
	}
	if s := m.server; s.TLSCertFile+s.TLSPrivateKeyFile+s.ImageCredentialProviderBinDir+s.ImageCredentialProviderConfigPath != "" || !s.ServerTLSBootstrap {
		t.Errorf("the kubelet gets %q, %q, %t", s.TLSCertFile, s.ImageCredentialProviderBinDir, s.ServerTLSBootstrap)
	}
	if left := leaveOut(m.server); len(left) > 0 {
		t.Errorf("again: %v", left)
	}
}
