package names

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Holder names the program that has a UDP or TCP port open on this device, as "name (pid 1)"; ""
// if it is not found.
func Holder(port uint16) string {
	inodes := map[string]bool{}
	for _, table := range []string{"udp", "udp6", "tcp", "tcp6"} {
		raw, err := os.ReadFile("/proc/net/" + table)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(raw)) {
			f := strings.Fields(line) // proc(5): sl, local_address, rem_address, st, ..., inode
			if len(f) < 10 || !strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				continue
			}
			if strings.HasPrefix(table, "tcp") && f[3] != "0A" { // TCP_LISTEN
				continue
			}
			inodes["socket:["+f[9]+"]"] = true
		}
	}
	if len(inodes) == 0 {
		return ""
	}
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return ""
	}
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil || !inodes[target] {
			continue
		}
		pid := strings.Split(link, "/")[2]
		name, err := os.ReadFile("/proc/" + pid + "/comm")
		if err != nil {
			continue
		}
		return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(name)), pid)
	}
	return ""
}
