package netif

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// CNIConfigs is where container runtimes look for the configurations of CNI plugins.
const CNIConfigs = "/etc/cni/net.d"

// ResolverFiles are where the DNS servers of a device are written down: resolv.conf(5), and
// systemd-resolved's own, as the former names only its listener on this device.
func ResolverFiles() []string {
	return []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}
}

// Resolvers are the DNS servers in such files that are not on this device itself. An unreadable
// file counts as empty.
func Resolvers(files ...string) (all []netip.Addr) {
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) < 2 || fields[0] != "nameserver" {
				continue
			}
			if ip, err := netip.ParseAddr(fields[1]); err == nil && !ip.IsLoopback() && !slices.Contains(all, ip) {
				all = append(all, ip)
			}
		}
	}
	return all
}

// PodRanges are the networks that the CNI configurations in a directory give to pods by their own
// IPAM (host-local's subnet, range and ranges; others' subnet). Unreadable files are skipped: a
// plugin may get its ranges elsewhere.
func PodRanges(dir string) (all []netip.Prefix) {
	for _, pattern := range []string{"*.conf", "*.conflist", "*.json"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			continue // the pattern is right
		}
		for _, file := range files {
			raw, err := os.ReadFile(file)
			var config any
			if err != nil || json.Unmarshal(raw, &config) != nil {
				continue
			}
			all = subnets(config, all)
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

// subnets finds every "subnet" below an "ipam" or anywhere else in a configuration.
func subnets(v any, all []netip.Prefix) []netip.Prefix {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if text, ok := value.(string); ok && (key == "subnet" || key == "Network") {
				if p, err := netip.ParsePrefix(text); err == nil {
					all = append(all, p.Masked())
				}
			}
			all = subnets(value, all)
		}
	case []any:
		for _, value := range v {
			all = subnets(value, all)
		}
	}
	return all
}

// NameServers returns the name servers of the host except one. DHCP may change them at any time:
// the files are small, and read only for names that are not cached.
func NameServers(except netip.AddrPort) (all []netip.AddrPort) {
	for _, ip := range Resolvers(ResolverFiles()...) {
		if u := netip.AddrPortFrom(ip, 53); u != except {
			all = append(all, u)
		}
	}
	return all
}
