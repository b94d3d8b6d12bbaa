// Package mangle marks connections that come to the device, in the mangle table of
// iptables and ip6tables.
//
// It owns the chains SKERRY-MARKS and SKERRY-ACE of that table, and one rule of PREROUTING for each
// that jumps to it: the second before all other rules, the first behind those that restore marks.
// It refuses to touch anything else. All changes of a family are one transaction of
// iptables-restore; it does not write if the kernel state is as desired. The chains stay when the
// process ends. Apply is called by one goroutine at a time.
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

// New returns a Driver. It needs the programs iptables-save and iptables-restore as soon as there
// is a rule, and ip6tables' for IPv6.
func New() *Driver { return &Driver{} }

// lockWait is how many seconds iptables-restore waits for other programs that hold the
// lock of the tables.
const lockWait = "10"

// family is one of the two, on its way.
type family struct {
	prefix string
	want   Chains
}

// Apply makes the chains hold exactly these rules, and reports how many families it changed.
// Without rules all of ours are removed, and a device without iptables is no error. The families
// are independent of each other, also of each other's failure.
func (*Driver) Apply(ctx context.Context, want Rules) (changed int, err error) {
	var errs []error
	var saves []*command
	var here []family
	for _, f := range []family{{"iptables", want.V4}, {"ip6tables", want.V6}} {
		if _, err := os.Stat("/proc/net/if_inet6"); err != nil && f.prefix == "ip6tables" {
			continue // the kernel has no IPv6
		}
		if _, err := exec.LookPath(f.prefix + "-restore"); err != nil {
			if len(f.want.Marks)+len(f.want.ACE) > 0 { // else no rule can be there
				errs = append(errs, fmt.Errorf("looking for %s: %w", f.prefix, err))
			}
			continue
		}
		here = append(here, f)
		saves = append(saves, begin(ctx, "", f.prefix+"-save", "-t", table))
	}
	var writes []*command
	for i, f := range here {
		saved, err := saves[i].end()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if input := restore(f.want, saved); input != "" {
			writes = append(writes, begin(ctx, input, f.prefix+"-restore", "--noflush", "-w", lockWait))
		}
	}
	for _, c := range writes {
		if _, err := c.end(); err != nil {
			errs = append(errs, err)
		} else {
			changed++
		}
	}
	return changed, errors.Join(errs...)
}

// command is a program that runs.
type command struct {
	*exec.Cmd
	out, errs bytes.Buffer
	failed    error
}

// begin starts a program, in the network of the calling thread.
func begin(ctx context.Context, input, program string, args ...string) *command {
	c := &command{Cmd: exec.CommandContext(ctx, program, args...)}
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(input), &c.out, &c.errs
	c.failed = c.Start()
	return c
}

// end waits for the program, and returns its output.
func (c *command) end() (string, error) {
	err := c.failed
	if err == nil {
		err = c.Wait()
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", c.Args[0], err, strings.TrimSpace(c.errs.String()))
	}
	return c.out.String(), nil
}
