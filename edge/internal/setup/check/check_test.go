package check_test

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/lantest"
	"github.com/skerry-io/skerry/edge/internal/setup/check"
)

// machine is a tree that looks like a device.
func machine(t *testing.T, files map[string]string) check.Machine {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return check.Machine{
		Root: root, DataDir: filepath.Join(root, "var/lib/skerry"), RuntimeEndpoint: "unix:///c.sock", CNIConfigDir: "/etc/cni/net.d", Joined: true,
		Clock: time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC), Built: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC),
	}
}

func levels(t *testing.T, m check.Machine) map[string]check.Level {
	t.Helper()
	got := map[string]check.Level{}
	for _, f := range check.Run(t.Context(), m) {
		got[f.Name] = f.Level
		if f.Level == check.Fail && f.Mend == "" {
			t.Errorf("%s fails and does not say what to do", f.Name)
		}
	}
	delete(got, "root") // depends on the user of the test
	delete(got, "disk space")
	delete(got, "programs") // of the folder for temporary files; TestShip_14 has one without
	return got
}

// A device whose packet filter drops IP protocol 112 is warned, with the remedy; a device without
// virtual IPs is not.
func TestTraps_06_CheckWarnsOfDroppedProtocol112(t *testing.T) {
	h := lantest.New(t).Host("10.82.0.1/24", "2001:db8:82::1/64")
	m := machine(t, nil)
	ask := func() (f check.Finding) {
		t.Helper()
		if err := h.Do(func() error {
			for _, f = range check.Run(t.Context(), m) {
				if f.Name == "vrrp" {
					return nil
				}
			}
			return errors.New("nothing is said of VRRP")
		}); err != nil {
			t.Fatal(err)
		}
		return f
	}
	m.VirtualIPs = true
	if f := ask(); f.Level != check.Fine || !strings.Contains(f.Message, "(2 tried;") {
		t.Errorf("nothing is filtered: %+v", f)
	}
	h.Shell("ip6tables -A INPUT -p 112 -j DROP")
	if f := ask(); f.Level != check.Warn || !strings.Contains(f.Message, "drops IP protocol 112: IPv6 on lan0") || !strings.Contains(f.Mend, "-p 112 -j ACCEPT") {
		t.Errorf("IPv6 is filtered: %+v", f)
	}
	h.Shell("iptables -A OUTPUT ! -p tcp -j DROP")
	if f := ask(); f.Level != check.Warn || !strings.Contains(f.Message, "IPv4 on lan0, IPv6 on lan0") {
		t.Errorf("both are filtered: %+v", f)
	}
	m.VirtualIPs = false
	if f := ask(); f.Level != check.Fine {
		t.Errorf("without virtual IPs: %+v", f)
	}
}

func TestRun(t *testing.T) {
	good := map[string]string{
		"etc/cni/net.d/10-bridge.conflist": "{}", "sys/fs/cgroup/cgroup.controllers": "memory", "proc/filesystems": "nodev\toverlay\n",
		"sys/module/bridge/refcnt": "0", "proc/sys/net/ipv4/ip_forward": "1\n", "proc/swaps": "Filename\tType\n",
		"proc/sys/fs/inotify/max_user_instances": "1024\n",
		"proc/net/route":                         "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\nlan0\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n",
	}
	t.Run("all is there", func(t *testing.T) {
		m := machine(t, good)
		l, err := net.Listen("unix", filepath.Join(m.Root, "c.sock"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		want := map[string]check.Level{
			"identity": check.Fine, "data directory": check.Fine, "containerd": check.Fine, "cni": check.Fine, "iptables": check.Fine, "cgroups": check.Fine, "kernel": check.Fine,
			"inotify": check.Fine, "ip forwarding": check.Fine, "swap": check.Fine, "node address": check.Fine, "ports": check.Fine, "clock": check.Fine, "vrrp": check.Fine,
		}
		if diff := cmp.Diff(want, levels(t, m)); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	})
	// Machines that the kubelet refuses by default, and accepts if its configuration allows it.
	old := map[string]string{"proc/swaps": "Filename\tType\n/dev/sda2\tpartition\n", "sys/fs/cgroup/memory/tasks": ""}
	t.Run("what the kubelet is told to take", func(t *testing.T) {
		m := machine(t, old)
		for _, tc := range []struct {
			cgroupV1, swap bool
			want           [2]check.Level
		}{
			{false, false, [2]check.Level{check.Fail, check.Fail}},
			{true, false, [2]check.Level{check.Note, check.Fail}},
			{false, true, [2]check.Level{check.Fail, check.Fine}},
		} {
			m.CgroupV1, m.Swap = tc.cgroupV1, tc.swap
			got := levels(t, m)
			if diff := cmp.Diff(tc.want, [2]check.Level{got["cgroups"], got["swap"]}); diff != "" {
				t.Errorf("%+v: (-want +got)\n%s", tc, diff)
			}
		}
	})
	t.Run("iptables", func(t *testing.T) {
		m := machine(t, map[string]string{"usr/sbin/iptables": ""})
		m.PodsAPI = true
		if got := levels(t, m)["iptables"]; got != check.Fine {
			t.Errorf("it is there: %s", got)
		}
		m = machine(t, nil)
		if got := levels(t, m)["iptables"]; got != check.Fine {
			t.Errorf("it is not needed: %s", got)
		}
	})
	t.Run("bare machine", func(t *testing.T) {
		m := machine(t, map[string]string{"proc/swaps": old["proc/swaps"], "sys/fs/cgroup/memory/tasks": "", "proc/sys/fs/inotify/max_user_instances": "128\n"})
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		m.PodsAPI = true
		m.Ports, m.Joined, m.Clock = []string{l.Addr().String()}, false, time.Unix(0, 0)
		want := map[string]check.Level{
			"identity": check.Note, "data directory": check.Fine, "containerd": check.Fail, "cni": check.Fail, "iptables": check.Fail, "cgroups": check.Fail, "kernel": check.Warn,
			"inotify": check.Warn, "ip forwarding": check.Warn, "swap": check.Fail, "node address": check.Warn, "ports": check.Fail, "clock": check.Warn, "vrrp": check.Fine,
		}
		if diff := cmp.Diff(want, levels(t, m)); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	})
	t.Run("edgecore's own pod network", func(t *testing.T) {
		for name, tc := range map[string]struct {
			files []string
			want  check.Level
		}{
			"all there":    {[]string{"usr/lib/cni/ptp", "usr/lib/cni/host-local", "opt/cni/bin/portmap", "usr/sbin/nft"}, check.Fine},
			"no nft":       {[]string{"usr/lib/cni/ptp", "usr/lib/cni/host-local", "usr/lib/cni/portmap"}, check.Fail},
			"no plugins":   {[]string{"usr/sbin/nft"}, check.Fail},
			"another's is": {[]string{"etc/cni/net.d/10-calico.conflist"}, check.Fine},
		} {
			files := map[string]string{}
			for _, f := range tc.files {
				files[f] = ""
			}
			m := machine(t, files)
			m.PodNetwork = true
			if got := levels(t, m)["cni"]; got != tc.want {
				t.Errorf("%s: %s, want %s", name, got, tc.want)
			}
		}
	})
	t.Run("dead socket", func(t *testing.T) {
		m := machine(t, good)
		m.RuntimeEndpoint = "tcp://x"
		if got := levels(t, m)["containerd"]; got != check.Fail {
			t.Errorf("containerd: %s", got)
		}
	})
}

// The file named in the answer is in the packages, and is a valid configuration.
func TestExampleCNIIsPackaged(t *testing.T) {
	root := "../../../../"
	raw, err := os.ReadFile(root + "build/package/edgecore.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var config struct{ Contents []struct{ Src, Dst string } }
	if err := yaml.Unmarshal(raw, &config); err != nil {
		t.Fatal(err)
	}
	for _, c := range config.Contents {
		if c.Dst != check.ExampleCNI {
			continue
		}
		raw, err := os.ReadFile(root + c.Src)
		var list struct{ Plugins []struct{ Type string } }
		if err == nil {
			err = json.Unmarshal(raw, &list)
		}
		if err != nil || len(list.Plugins) == 0 {
			t.Errorf("%s: %v, %+v", c.Src, err, list)
		}
		return
	}
	t.Errorf("the package of edgecore has no %s", check.ExampleCNI)
}
