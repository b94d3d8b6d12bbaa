package containerd

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// SandboxImage asks the program of that process, if it was started as containerd, for the image of
// sandboxes in its configuration (`containerd config dump`); "" if that has none, or if it is
// another program. It is for containerd 2: earlier ones have it elsewhere, and report it by CRI.
func SandboxImage(ctx context.Context, pid int) (string, error) {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	raw, err := os.ReadFile(filepath.Join(proc, "cmdline"))
	if err != nil {
		return "", fmt.Errorf("reading the arguments of the container runtime: %w", err)
	}
	args := strings.Split(strings.TrimSuffix(string(raw), "\x00"), "\x00")
	if filepath.Base(args[0]) != "containerd" {
		return "", nil
	}
	cmd := exec.CommandContext(ctx, filepath.Join(proc, "exe"), append(configFlag(args[1:]), "config", "dump")...)
	cmd.Args[0] = args[0] // a program of several names
	cmd.Dir = filepath.Join(proc, "cwd")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("running %s config dump: %w", args[0], err)
	}
	if m := pinned.FindSubmatch(out); m != nil {
		return string(m[1]), nil
	}
	return "", nil
}

// configFlag is the flag of containerd's configuration file among its arguments, if it has one.
func configFlag(args []string) []string {
	for n, a := range args {
		name, _, joined := strings.Cut(strings.TrimLeft(a, "-"), "=")
		switch {
		case !strings.HasPrefix(a, "-") || name != "config" && name != "c":
		case joined:
			return []string{a}
		case n+1 < len(args):
			return []string{a, args[n+1]}
		}
	}
	return nil
}

// pinned matches the sandbox image in the table of pinned images, in the output of containerd 2.
var pinned = regexp.MustCompile(`(?m)^\s*\[plugins\.['"]io\.containerd\.cri\.v1\.images['"]\.pinned_images\]\n(?:[^\[\n]*\n)*?\s*sandbox = ['"]([^'"\n]+)['"]`)
