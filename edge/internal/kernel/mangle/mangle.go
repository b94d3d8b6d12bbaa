// Package mangle marks connections that come to the device, in the mangle table of iptables and ip6tables.
//
// It owns the chains SKERRY-MARKS and SKERRY-ACE of that table, and one rule of PREROUTING for each that leads to it: the second before all other rules, the first behind those
// that restore marks. It refuses to touch anything else. All changes of a family are one transaction of iptables-restore; where the kernel is as it should be, nothing is
// written. What it has made stays when the process ends. Apply is called by one goroutine at a time.
package mangle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Driver makes the kernel's rules.
type Driver struct{}

// New returns a Driver. It needs the programs iptables-save and iptables-restore as soon as there is a rule, and ip6tables' for IPv6.
func New() *Driver { return &Driver{} }

// lockWait is how many seconds iptables-restore waits for other programs that hold the lock of the tables.
const lockWait = "10"

// Apply makes the chains hold exactly these rules, and reports how many families it changed. Without rules nothing of ours stays, and a device without iptables is as
// it should be.
func (*Driver) Apply(ctx context.Context, want Rules) (changed int, err error) {
	var errs []error
	for _, f := range []struct {
		prefix string
		want   Chains
	}{{"iptables", want.V4}, {"ip6tables", want.V6}} {
		if _, err := os.Stat("/proc/net/if_inet6"); err != nil && f.prefix == "ip6tables" {
			continue // the kernel has no IPv6
		}
		done, err := apply(ctx, f.prefix, f.want)
		if done {
			changed++
		}
		errs = append(errs, err)
	}
	return changed, errors.Join(errs...)
}

func apply(ctx context.Context, prefix string, want Chains) (changed bool, err error) {
	none := len(want.Marks)+len(want.ACE) == 0
	if _, err := exec.LookPath(prefix + "-restore"); err != nil {
		if none {
			return false, nil // no rule can be there
		}
		return false, fmt.Errorf("looking for %s: %w", prefix, err)
	}
	saved, err := run(ctx, "", prefix+"-save", "-t", table)
	if err != nil {
		return false, err
	}
	input := restore(want, saved)
	if input == "" {
		return false, nil
	}
	if _, err := run(ctx, input, prefix+"-restore", "--noflush", "-w", lockWait); err != nil {
		return false, err
	}
	return true, nil
}

func run(ctx context.Context, input, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}
