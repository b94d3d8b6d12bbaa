package release_test

import (
	"archive/tar"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/process"
)

// An emulator runs programs for arm64, by qemu-user.
type emulator struct {
	t          *testing.T
	qemu, root string // root is where install.sh has installed them
}

func (e emulator) program(name string) string { return filepath.Join(e.root, "usr/bin", name) }

func (e emulator) run(in, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(e.t.Context(), e.qemu, append([]string{e.program(name)}, args...)...)
	cmd.Stdin = strings.NewReader(in)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %v: %w\n%s%s", name, args, err, out, errs.String())
	}
	return string(out), err
}

func (e emulator) must(in, name string, args ...string) string {
	e.t.Helper()
	out, err := e.run(in, name, args...)
	if err != nil {
		e.t.Fatal(err)
	}
	return out
}

// TestShip_02_ReleaseRunsOnARM64: a release's files for arm64 run on arm64, by qemu-user:
// install.sh takes them where uname prints aarch64; each program prints its version; cloudcore
// works at a real kube-apiserver; a device joins it and has its link; kubectl-skerry asks
// kube-apiserver; and the image names its platform. The release is compiled as a real one is.
// PROGRAMS of the environment lists its programs: where it has no edgecore, the device is of this
// machine's architecture.
func TestShip_02_ReleaseRunsOnARM64(t *testing.T) {
	qemu, err := exec.LookPath("qemu-aarch64-static")
	if err != nil {
		t.Fatalf("apt-get install qemu-user-static: %v", err)
	}
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	secret, err := secret()
	if err != nil {
		t.Fatal(err)
	}
	release := filepath.Join(t.TempDir(), "arm64")
	command(t, root, []string{"SKERRY_SIGN_KEY=" + secret, "ARCHES=arm64", "REGISTRY=" + registry}, "build/release.sh", version, release)

	e := emulator{t, qemu, t.TempDir()}
	bin := t.TempDir()
	write(t, filepath.Join(bin, "uname"), "#!/bin/sh\necho aarch64\n")
	for _, name := range programs() {
		command(t, release, []string{"PATH=" + bin + ":" + os.Getenv("PATH")}, "sh", "install.sh", "--program", name, "--root", e.root, release)
		f, err := elf.Open(e.program(name))
		if err != nil {
			t.Fatal(err)
		}
		if f.Close(); f.Machine != elf.EM_AARCH64 {
			t.Errorf("%s is for %v", name, f.Machine)
		}
		arg := "version"
		if name == "kubectl-skerry" {
			arg = "--version"
		}
		if out := e.must("", name, arg); !strings.Contains(out, version) {
			t.Errorf("%s says %q", name, out)
		}
	}
	if !slices.Contains(programs(), "cloudcore") {
		return
	}
	for _, name := range []string{"cloudcore", "pause"} {
		if found := architectures(t, one(t, release, name+"_*.oci.tar")); !slices.Equal(found, []string{"arm64"}) {
			t.Errorf("the image of %s is for %v", name, found)
		}
	}
	e.links(root)
}

// architectures are those of the configurations of an archive's images.
func architectures(t *testing.T, archive string) (all []string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		var config struct {
			Architecture string
			RootFS       any
		}
		if h.Size < 1<<16 && json.NewDecoder(r).Decode(&config) == nil && config.RootFS != nil {
			all = append(all, config.Architecture)
		}
	}
}

// links runs cloudcore at a real kube-apiserver, and lets a device join it and link.
func (e emulator) links(root string) {
	t := e.t
	const host = "127.64.2.1" // all of 127.0.0.0/8 is this machine, so that it has a port 443 of its own
	plane := cluster.Run(t)
	plane.Apply(t, "manifests/crds")
	plane.Apply(t, "manifests/cloudcore")
	dir := t.TempDir()
	account := func(name string) string {
		file := filepath.Join(dir, name)
		plane.AccountKubeconfig(t, name, file)
		return file
	}
	health := cluster.FreeAddress(t, "tcp")
	write(t, filepath.Join(dir, "cloudcore.yaml"), fmt.Sprintf("apiVersion: config.skerry.io/v1alpha1\nkind: CloudCore\nkubeconfig: %s\napprover: {kubeconfig: %s}\nhealth: {listen: %q}\n"+
		"tunnel: {listen: \"\"}\nadvertise: [%s]\ndevices: {listen: \"%[4]s:443\"}\n",
		account("cloudcore"), account("cloudcore-approver"), health, host))
	e.start(dir, "cloudcore", filepath.Join(dir, "cloudcore.yaml"))
	cluster.WaitReady(t, "cloudcore", health)
	token := e.must("", "cloudcore", "token", "create", "--kubeconfig", plane.Kubeconfig)

	write(t, filepath.Join(dir, "edgecore.yaml"), fmt.Sprintf("apiVersion: config.skerry.io/v1alpha1\nkind: EdgeCore\ndataDir: %[1]s/data\nhealth: {listen: \"\"}\nmodules:\n  edgeHub: {enable: true}\n"+
		"  edgeAPI: {socket: %[1]s/edge.sock, listen: \"\", pods: false}\n  edged: {enable: false}\n  route: {enable: false}\n  vip: {enable: false}\n  drain: {enable: false}\n", dir))
	device := e
	if !slices.Contains(programs(), "edgecore") {
		t.Log("PROGRAMS leaves edgecore out: the device is of this machine's architecture")
		built, err := binary.Build(t.Context(), root, "edgecore")
		if err != nil {
			t.Fatal(err)
		}
		device = emulator{t, "/usr/bin/env", t.TempDir()}
		if err := os.MkdirAll(filepath.Join(device.root, "usr/bin"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(built[0], device.program("edgecore")); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(dir, "edgecore.yaml")
	device.must(token, "edgecore", "join", "--config", config, "--token-file", "-", "--node-name", "arm", host)
	log := device.start(dir, "edgecore", config)
	cluster.Eventually(t, "a link", func(context.Context) error {
		raw, err := os.ReadFile(log)
		if err == nil && !strings.Contains(string(raw), "Session opened") {
			err = errors.New(string(raw[max(0, len(raw)-2000):]))
		}
		return err
	})
	if slices.Contains(programs(), "kubectl-skerry") {
		if _, err := e.run("", "kubectl-skerry", "--kubeconfig", plane.Kubeconfig, "logs", "-n", "default", "absent"); err == nil || !strings.Contains(err.Error(), `pods "absent" not found`) {
			t.Errorf("kubectl-skerry logs: %v", err)
		}
	}
}

// start runs a program until the test ends, and returns its log.
func (e emulator) start(dir, name, config string) (log string) {
	e.t.Helper()
	log = filepath.Join(dir, name+".log")
	cluster.StartProgram(e.t, name, process.Spec{Path: e.qemu, Args: []string{e.program(name), "--config", config}, Log: log}, time.Minute)
	return log
}
