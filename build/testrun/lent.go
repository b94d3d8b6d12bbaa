package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ownerVariable names the process with which lent control planes end (package cluster): with it a
// run has one pool, and not one for each go test.
const ownerVariable = "SKERRY_PLANES_OWNER"

// lent is the processor time of the control planes of this run's pool so far: they outlive the test
// binaries that started them, so no row of a package has it.
func lent() (c cost) {
	owner := fmt.Appendf(nil, "\x00--owner=%d\x00", os.Getpid())
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is ours
	for _, file := range lines {
		if line, err := os.ReadFile(file); err != nil || !bytes.Contains(line, owner) {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(filepath.Dir(file), "stat"))
		if err != nil {
			continue
		}
		// From the third field on: the second, the command, may contain spaces and parentheses.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) < 13 {
			continue
		}
		c.User += ticks(fields[11])
		c.Kernel += ticks(fields[12])
	}
	return c
}

// ticks are hundredths of a second, as the kernel shows them to programs (proc_pid_stat(5)).
func ticks(s string) seconds {
	n, _ := strconv.Atoi(s) // the kernel writes numbers
	return seconds(n) / 100
}
