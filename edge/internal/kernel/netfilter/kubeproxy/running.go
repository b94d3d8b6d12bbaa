package kubeproxy

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Running reports whether a kube-proxy runs in the network of the calling thread: a process of that
// name, in a container or not.
func Running() (bool, error) {
	own, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return false, fmt.Errorf("looking for a kube-proxy: %w", err)
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return false, fmt.Errorf("looking for a kube-proxy: %w", err)
	}
	for _, p := range processes { // one that has ended since can't be read
		name, err := os.ReadFile(filepath.Join(p, "comm"))
		if err != nil || strings.TrimSpace(string(name)) != "kube-proxy" {
			continue
		}
		if network, err := os.Readlink(filepath.Join(p, "ns/net")); err == nil && network == own {
			return true, nil
		}
	}
	return false, nil
}
