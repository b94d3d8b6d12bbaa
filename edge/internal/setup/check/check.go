// Package check reports a machine's missing prerequisites of edgecore, and their remedies.
//
// It owns the list of a device's prerequisites. It makes no change, sends no packet that another
// host sees, and needs neither edgecore nor the cloud. It only reports. Run calls one probe after
// another.
package check

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/acd"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
)

// Level is how bad a finding is.
type Level string

// The levels.
const (
	Fine Level = "fine"
	Note Level = "note" // no problem; context for later findings
	Warn Level = "warn" // works, but not as well as it could
	Fail Level = "fail" // edgecore or its pods won't work
)

// Finding is the answer to one question.
type Finding struct {
	Name    string `json:"name"`
	Level   Level  `json:"level"`
	Message string `json:"message"`
	Mend    string `json:"mend,omitempty"` // the remedy
}

// Machine is the machine to check. Root lets a test check another tree than the machine's own.
type Machine struct {
	Root            string // "/" of the machine
	DataDir         string
	RuntimeEndpoint string   // of containerd, "unix:///run/containerd/containerd.sock"
	CNIConfigDir    string   // "/etc/cni/net.d"
	Ports           []string // addresses that edgecore will listen on; empty while it runs
	Joined          bool
	Clock           time.Time // the time now, as the machine has it
	Built           time.Time // when this program was built
	VirtualIPs      bool      // the device may serve some
	PodNetwork      bool      // edgecore makes the pod network where no other CNI plugin does
	PodsAPI         bool      // pods are redirected to the edge API
	CgroupV1        bool      // the kubelet starts with cgroups of version 1 (failCgroupV1: false)
	Swap            bool      // the kubelet starts with swap (failSwapOn: false)
	NodeIP          string    // the address that the Node is to report; "": that of the default route
}

const dialTimeout = 2 * time.Second

// Run asks every question.
func Run(ctx context.Context, m Machine) []Finding {
	probes := []struct {
		name  string
		probe func(context.Context, Machine) (Level, string, string)
	}{
		{"root", root},
		{"identity", identity},
		{"data directory", dataDir},
		{"disk space", diskSpace},
		{"programs", programs},
		{"containerd", containerd},
		{"cni", cni},
		{"iptables", iptables},
		{"cgroups", cgroups},
		{"kernel", kernel},
		{"inotify", inotify},
		{"ip forwarding", forwarding},
		{"swap", swap},
		{"node address", nodeAddress},
		{"ports", ports},
		{"clock", clock},
		{"vrrp", vrrp},
	}
	findings := make([]Finding, 0, len(probes))
	for _, p := range probes {
		level, message, mend := p.probe(ctx, m)
		findings = append(findings, Finding{Name: p.name, Level: level, Message: message, Mend: mend})
	}
	return findings
}

func (m Machine) path(p string) string { return filepath.Join(m.Root, p) }

func root(context.Context, Machine) (Level, string, string) {
	if os.Geteuid() == 0 {
		return Fine, "running as root", ""
	}
	name := "another user"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return Fail, "running as " + name + "; the kubelet needs root", "run it with sudo, or by the systemd unit"
}

func identity(_ context.Context, m Machine) (Level, string, string) {
	if m.Joined {
		return Fine, "this device has joined", ""
	}
	return Note, "this device has not joined a cluster yet", "edgecore join --token-file FILE HOST"
}

func dataDir(_ context.Context, m Machine) (Level, string, string) {
	at := existing(m.DataDir)
	if err := unix.Access(at, unix.W_OK|unix.X_OK); err != nil {
		return Fail, fmt.Sprintf("%s can't be written: %v", at, err), "make it writable, or set dataDir to another place"
	}
	return Fine, m.DataDir + " can be written", ""
}

// existing is the nearest directory above path that exists.
func existing(path string) string {
	for path != "/" && path != "." {
		if _, err := os.Stat(path); err == nil {
			break
		}
		path = filepath.Dir(path)
	}
	return path
}

// containerdRoot is where containerd keeps images and containers unless configured otherwise.
const containerdRoot = "/var/lib/containerd"

// programs looks for mounts from which no program may be run (mount(8), noexec): images are
// unpacked on one, and the volumes of pods are on the other.
func programs(_ context.Context, m Machine) (Level, string, string) {
	for _, place := range []struct {
		path  string
		level Level
		what  string
	}{
		{m.path(containerdRoot), Fail, "no container can start"},
		{m.DataDir, Warn, "pods can't run what they put into their volumes"},
	} {
		var s unix.Statfs_t
		at := existing(place.path)
		if err := unix.Statfs(at, &s); err == nil && s.Flags&unix.ST_NOEXEC != 0 {
			return place.level, fmt.Sprintf("%s is mounted noexec: %s", at, place.what), "mount -o remount,exec it, and take noexec out of /etc/fstab"
		}
	}
	return Fine, "can be run from where images and volumes are", ""
}

// leastSpace is the space for the store, its growth and the kubelet's own files with a reserve, in
// bytes.
const leastSpace = 256 << 20

func diskSpace(_ context.Context, m Machine) (Level, string, string) {
	var s unix.Statfs_t
	at := existing(m.DataDir)
	if err := unix.Statfs(at, &s); err != nil {
		return Warn, fmt.Sprintf("%s can't be measured: %v", at, err), ""
	}
	free := s.Bavail * uint64(s.Bsize)
	message := fmt.Sprintf("%d MiB free at %s", free>>20, at)
	if free < leastSpace {
		return Fail, message, fmt.Sprintf("make room: %d MiB at least", leastSpace>>20)
	}
	return Fine, message, ""
}

func containerd(ctx context.Context, m Machine) (Level, string, string) {
	socket, ok := strings.CutPrefix(m.RuntimeEndpoint, "unix://")
	if !ok {
		return Fail, fmt.Sprintf("containerRuntimeEndpoint %q is no unix socket", m.RuntimeEndpoint), "set it to unix:///run/containerd/containerd.sock"
	}
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "unix", m.path(socket))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Fail, "there is no " + socket, "install and start containerd: apt-get install containerd; systemctl enable --now containerd"
	case err != nil:
		return Fail, fmt.Sprintf("%s: %v", socket, err), "start containerd: systemctl start containerd"
	}
	_ = conn.Close()
	return Fine, "containerd answers at " + socket, ""
}

// ExampleCNI is a network configuration that the packages bring.
const ExampleCNI = "/usr/share/doc/skerry-edgecore/examples/10-bridge.conflist"

// ownCNI is the file that edgecore writes (edge/internal/site/podnet).
const ownCNI = "10-skerry.conflist"

// has reports whether one of the folders has a file of that name.
func (m Machine) has(name string, dirs ...string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool {
		_, err := os.Stat(filepath.Join(m.path(dir), name))
		return err == nil
	})
}

// hasProgram reports whether a network tool is installed.
func (m Machine) hasProgram(name string) bool {
	return m.has(name, "/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/local/bin")
}

// podNetwork looks for the programs that edgecore's own pod network consists of.
func podNetwork(m Machine) (Level, string, string) {
	var missing []string
	for _, plugin := range []string{"ptp", "host-local", "portmap"} {
		if !m.has(plugin, "/opt/cni/bin", "/usr/lib/cni") {
			missing = append(missing, "the CNI plugin "+plugin)
		}
	}
	if !m.hasProgram("nft") {
		missing = append(missing, "nft")
	}
	if len(missing) > 0 {
		return Fail, strings.Join(missing, ", ") + " missing: pods other than hostNetwork ones won't start", "apt-get install containernetworking-plugins nftables"
	}
	return Fine, "edgecore makes the pod network", ""
}

func cni(_ context.Context, m Machine) (Level, string, string) {
	for _, pattern := range []string{"*.conflist", "*.conf", "*.json"} {
		if found, err := filepath.Glob(filepath.Join(m.path(m.CNIConfigDir), pattern)); err == nil && len(found) > 0 {
			if m.PodNetwork && slices.ContainsFunc(found, func(f string) bool { return filepath.Base(f) == ownCNI }) {
				return podNetwork(m) // it needs the same for the next pod
			}
			return Fine, strings.TrimPrefix(found[0], strings.TrimSuffix(m.Root, "/")), ""
		}
	}
	if m.PodNetwork {
		return podNetwork(m)
	}
	return Fail, "no network configuration in " + m.CNIConfigDir + ": pods other than hostNetwork ones won't start",
		"install containernetworking-plugins and put a conflist there, with a subnet of this device's own; " + ExampleCNI + " is one"
}

func iptables(_ context.Context, m Machine) (Level, string, string) {
	switch {
	case !m.PodsAPI:
		return Fine, "not needed to lead pods to the edge API: modules.edgeAPI.pods is off", ""
	case !m.hasProgram("iptables"):
		return Fail, "iptables is missing: pods that ask for the Kubernetes API don't reach the one of this device, and get no answer without a link",
			"apt-get install iptables, or set modules.edgeAPI.pods: false"
	}
	return Fine, "is there, to lead pods to the edge API", ""
}

func cgroups(_ context.Context, m Machine) (Level, string, string) {
	if _, err := os.Stat(m.path("/sys/fs/cgroup/cgroup.controllers")); err == nil {
		return Fine, "version 2", ""
	}
	if _, err := os.Stat(m.path("/sys/fs/cgroup/memory")); err == nil {
		const boot = "boot with version 2 (systemd.unified_cgroup_hierarchy=1)"
		if m.CgroupV1 {
			return Note, "version 1, which the kubelet takes for now (failCgroupV1: false): Kubernetes will drop it", boot
		}
		return Fail, "version 1: the kubelet refuses to start with it", boot + ", or set modules.edged.kubelet.failCgroupV1: false"
	}
	return Fail, "no cgroups at /sys/fs/cgroup", "boot with the memory controller (cgroup_enable=memory)"
}

func kernel(_ context.Context, m Machine) (Level, string, string) {
	var missing []string
	for name, path := range map[string]string{"overlayfs": "overlay", "bridge": "bridge"} {
		if !hasFilesystem(m, path) && !hasModule(m, path) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return Warn, "not seen (they may be loaded on demand): " + strings.Join(missing, ", "), "modprobe " + strings.Join(missing, " ")
	}
	return Fine, "overlayfs and bridge are there", ""
}

func hasFilesystem(m Machine, name string) bool {
	f, err := os.Open(m.path("/proc/filesystems"))
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	for scan := bufio.NewScanner(f); scan.Scan(); {
		if strings.HasSuffix(scan.Text(), "\t"+name) {
			return true
		}
	}
	return false
}

func hasModule(m Machine, name string) bool {
	_, err := os.Stat(m.path("/sys/module/" + name))
	return err == nil
}

// leastInstances is of inotify(7), for all processes of root together: six are edgecore's, systemd
// and containerd have some, and on cgroups of version 2 containerd's shims have one for each
// container and each sandbox. Calls beyond the limit fail with "too many open files". Kubernetes
// allows 110 pods.
const leastInstances = 512

func inotify(_ context.Context, m Machine) (Level, string, string) {
	const file = "/proc/sys/fs/inotify/max_user_instances"
	text, err := os.ReadFile(m.path(file))
	if err != nil {
		return Warn, fmt.Sprintf("the limit can't be read: %v", err), ""
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	switch {
	case err != nil:
		return Warn, fmt.Sprintf("%s says %q", file, text), ""
	case limit < leastInstances:
		return Warn, fmt.Sprintf("fs.inotify.max_user_instances is %d: with many pods, what watches files won't start (\"too many open files\")", limit),
			"sysctl -w fs.inotify.max_user_instances=1024, and a line in /etc/sysctl.d"
	}
	return Fine, fmt.Sprintf("%d instances", limit), ""
}

func forwarding(_ context.Context, m Machine) (Level, string, string) {
	v, err := os.ReadFile(m.path("/proc/sys/net/ipv4/ip_forward"))
	if err == nil && strings.TrimSpace(string(v)) == "1" {
		return Fine, "on", ""
	}
	return Warn, "net.ipv4.ip_forward is off: pods won't reach beyond this device", "sysctl -w net.ipv4.ip_forward=1, and a line in /etc/sysctl.d"
}

func swap(_ context.Context, m Machine) (Level, string, string) {
	data, err := os.ReadFile(m.path("/proc/swaps"))
	if err == nil && strings.Count(strings.TrimSpace(string(data)), "\n") >= 1 {
		if m.Swap {
			return Fine, "swap is on, and the kubelet starts with it (failSwapOn: false)", ""
		}
		return Fail, "swap is on: the kubelet refuses to start with it", "swapoff -a, and no line for it in /etc/fstab; or set modules.edged.kubelet.failSwapOn: false"
	}
	return Fine, "no swap", ""
}

// nodeAddress asks for what the kubelet takes the Node's address from: without one the Node has no
// InternalIP, and pods of the host network don't start (k8s.io/kubernetes/pkg/kubelet/nodestatus).
func nodeAddress(_ context.Context, m Machine) (Level, string, string) {
	switch {
	case m.NodeIP != "":
		return Fine, m.NodeIP + ", by modules.edged.nodeIP", ""
	case defaultRoute(m):
		return Fine, "there is a default route", ""
	}
	return Warn, "there is no default route, so the Node gets no address, and pods of the host network don't start", "set modules.edged.nodeIP in edgecore.yaml, or add a default route"
}

// defaultRoute reports whether the kernel has one, of either family (proc(5), /proc/net/route).
func defaultRoute(m Machine) bool {
	has := func(file string, is func(fields []string) bool) bool {
		text, _ := os.ReadFile(m.path(file)) // without IPv6 there is no such file
		return slices.ContainsFunc(strings.Split(string(text), "\n"), func(line string) bool { return is(strings.Fields(line)) })
	}
	return has("/proc/net/route", func(f []string) bool { return len(f) > 7 && f[1] == "00000000" && f[7] == "00000000" }) ||
		has("/proc/net/ipv6_route", func(f []string) bool {
			return len(f) > 9 && strings.Trim(f[0], "0") == "" && f[1] == "00" && f[9] != "lo"
		})
}

func ports(ctx context.Context, m Machine) (Level, string, string) {
	var taken []string
	for _, address := range m.Ports {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			taken = append(taken, address)
			continue
		}
		_ = l.Close()
	}
	if len(taken) > 0 {
		return Fail, "in use by another process: " + strings.Join(taken, ", "), "ss -ltnp shows the process; stop it, or set another address in edgecore.yaml"
	}
	return Fine, "free", ""
}

func clock(_ context.Context, m Machine) (Level, string, string) {
	if m.Clock.Before(m.Built) {
		return Warn, fmt.Sprintf("the clock says %s, before this program was built: it works, but logs and events bear the wrong time", m.Clock.UTC().Format(time.RFC3339)),
			"set the clock, or let it be set: apt-get install chrony"
	}
	return Fine, m.Clock.UTC().Format(time.RFC3339), ""
}

// vrrp asks whether the device's own packet filter passes the elections of virtual IPs.
func vrrp(ctx context.Context, m Machine) (Level, string, string) {
	if !m.VirtualIPs {
		return Fine, "no virtual IPs", ""
	}
	interfaces, err := netif.List()
	if err != nil {
		return Warn, err.Error(), ""
	}
	var filtered []string
	asked := 0
	for _, i := range interfaces {
		for _, family := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			if !slices.ContainsFunc(i.Prefixes, func(p netip.Prefix) bool { return p.Addr().Is4() == family.Is4() }) {
				continue
			}
			asked++
			switch err := acd.Passes(ctx, i.Name, family); {
			case errors.Is(err, acd.ErrFiltered):
				filtered = append(filtered, map[bool]string{true: "IPv4", false: "IPv6"}[family.Is4()]+" on "+i.Name)
			case err != nil:
				return Warn, fmt.Sprintf("IP protocol 112 can't be tried: %v", err), ""
			}
		}
	}
	if len(filtered) > 0 {
		return Warn, "this device's packet filter drops IP protocol 112: " + strings.Join(filtered, ", ") + ": two nodes may hold one virtual IP",
			"iptables -I INPUT -p 112 -j ACCEPT, and OUTPUT alike; ip6tables for IPv6. Pools with advertisements: Unicast need it too"
	}
	return Fine, fmt.Sprintf("IP protocol 112 passes this device's packet filter (%d tried; what switches filter is not seen here)", asked), ""
}
