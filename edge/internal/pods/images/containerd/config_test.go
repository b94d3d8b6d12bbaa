package containerd_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/edge/internal/pods/images/containerd"
)

// TestMain is a container runtime where the program is called as one: it runs until its input ends,
// or prints its configuration and notes its arguments.
func TestMain(m *testing.M) {
	if name := filepath.Base(os.Args[0]); name != "containerd" && name != "crio" {
		os.Exit(m.Run())
	}
	args := os.Args[1:]
	if !slices.Contains(args, "dump") {
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	fmt.Print(os.Getenv("DUMP"))
	if err := os.WriteFile(os.Getenv("DUMPED"), []byte(strings.Join(args, " ")), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// The process's own program is asked, with its configuration file. *Played*: the program, by this
// test's; the output is that of containerd 2.1.4.
func TestSandboxImage(t *testing.T) {
	const table = "[plugins.'io.containerd.cri.v1.images'.pinned_images]"
	tests := map[string]struct {
		args      []string // of the process
		out       string
		want, ran string
	}{
		"containerd 2.1": {[]string{"containerd", "--config", "/etc/x.toml", "--log-level", "debug"},
			"version = 3\n[plugins]\n  [plugins.'io.containerd.cri.v1.images']\n    snapshotter = 'overlayfs'\n\n    " + table + "\n      sandbox = 'pause:3.10'\n\n  [plugins.'x']\n",
			"pause:3.10", "--config /etc/x.toml config dump"},
		"by the short flag": {[]string{"/usr/bin/containerd", "-c=x.toml"}, table + "\n  other = 'a:1'\n  sandbox = \"b:2\"\n", "b:2", "-c=x.toml config dump"},
		"without a file":    {[]string{"containerd"}, table + "\n  sandbox = 'b:2'\n", "b:2", "config dump"},
		"without an image":  {[]string{"containerd"}, table + "\n\n[plugins.'x']\n  sandbox = 'b:2'\n", "", "config dump"},
		"no output":         {[]string{"containerd", "--config"}, "", "", "config dump"},
		"another program":   {[]string{"crio", "--config", "x"}, table + "\n  sandbox = 'b:2'\n", "", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ran := filepath.Join(t.TempDir(), "ran")
			t.Setenv("DUMP", test.out)
			t.Setenv("DUMPED", ran)
			process := &exec.Cmd{Path: "/proc/self/exe", Args: test.args}
			input, err := process.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := process.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = input.Close()
				_ = process.Wait()
			}()
			cmdline := filepath.Join("/proc", strconv.Itoa(process.Process.Pid), "cmdline")
			for raw := []byte(nil); len(raw) == 0; { // execve(2) sets it last
				if raw, err = os.ReadFile(cmdline); err != nil {
					t.Fatal(err)
				}
			}
			got, err := containerd.SandboxImage(t.Context(), process.Process.Pid)
			if err != nil || got != test.want {
				t.Errorf("%q, %v, want %q", got, err, test.want)
			}
			args, _ := os.ReadFile(ran) // it may not have been asked
			if diff := cmp.Diff(test.ran, string(args)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
