// Package conformance runs Kubernetes' own end-to-end tests of Services, names and pod networks on
// the edges of a trial, and writes down their results.
//
// It owns the image that those tests run in pods, made of Kubernetes' own agnhost and of programs
// of this machine since there is no registry here, the list of cases that can't pass on devices of
// a trial (known.txt), and docs/dev/conformance.md. It runs by `make conformance` alone.
package conformance

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/skerry-io/skerry/build/image"
	"github.com/skerry-io/skerry/tests/cluster/binary"
)

// images are those that the cases run in pods, by the names that e2e.test has for them. One archive
// stands for all: each case names its program, and without a name it is to pause.
func images(ctx context.Context, tests string) (all []string, err error) {
	out, err := exec.CommandContext(ctx, tests, "--list-images").Output()
	if err != nil {
		return nil, fmt.Errorf("asking which images the cases run: %w", err)
	}
	for _, name := range strings.Fields(string(out)) {
		for _, ours := range []string{"/e2e-test-images/agnhost:", "/e2e-test-images/glibc-dns-testing:", "/pause:"} {
			if strings.Contains(name, ours) {
				all = append(all, name)
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s names no image that could be made here", tests)
	}
	return all, nil
}

// tools are programs that the cases run in a pod, by their paths in it. dash is the shell: Debian's
// busybox runs its own nc and hostname before programs in PATH.
var tools = map[string]string{
	"/bin/sh": "dash", "/bin/bash": "bash", "/usr/bin/curl": "curl", "/usr/bin/dig": "dig", "/usr/bin/getent": "getent", "/bin/nc": "nc.openbsd",
	"/usr/bin/socat": "socat", "/bin/hostname": "hostname", "/bin/ip": "ip",
}

// missing lists the programs that this machine lacks.
func missing() (all []string) {
	for _, program := range append(tooled(), "busybox") {
		if _, err := exec.LookPath(program); err != nil {
			all = append(all, program)
		}
	}
	return all
}

func tooled() (all []string) {
	for _, program := range tools {
		all = append(all, program)
	}
	slices.Sort(all)
	return all
}

// pack writes the archive of the image around agnhost. dir has the certificate and the key by which
// agnhost serves TLS.
func pack(ctx context.Context, path, agnhost, dir string, names []string) error {
	program, err := os.ReadFile(agnhost)
	if err != nil {
		return fmt.Errorf("reading agnhost: %w", err)
	}
	files, err := contents(ctx)
	if err != nil {
		return err
	}
	for _, name := range []string{"localhost.crt", "localhost.key"} {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return fmt.Errorf("reading what agnhost serves TLS with: %w", err)
		}
		files = append(files, image.File{Path: "/" + name, Mode: 0o644, Content: raw})
	}
	var out bytes.Buffer
	_, err = image.Archive(&out, image.Image{
		Names: names, Platforms: []image.Platform{{Arch: "amd64", Program: program}}, Path: "/agnhost", Cmd: []string{"pause"}, Files: files,
	})
	if err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}

// contents are the tools, the libraries that they need, and busybox under the names that
// are not taken.
func contents(ctx context.Context) (files []image.File, err error) {
	have := map[string]bool{}
	add := func(at, from string) error {
		if have[at] {
			return nil
		}
		have[at] = true
		raw, err := os.ReadFile(from)
		if err != nil {
			return fmt.Errorf("reading what goes into the image: %w", err)
		}
		files = append(files, image.File{Path: at, Mode: 0o755, Content: raw})
		return nil
	}
	for at, name := range tools {
		program, err := exec.LookPath(name)
		if err != nil {
			return nil, fmt.Errorf("looking for %s: %w", name, err)
		}
		if err := add(at, program); err != nil {
			return nil, err
		}
		libraries, err := binary.Libraries(ctx, program)
		if err != nil {
			return nil, err
		}
		for _, l := range libraries {
			if err := add(l, l); err != nil {
				return nil, err
			}
		}
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return nil, fmt.Errorf("looking for busybox: %w", err)
	}
	if err := add("/bin/busybox", busybox); err != nil {
		return nil, err
	}
	applets, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("listing what busybox is: %w", err)
	}
	for _, name := range strings.Fields(string(applets)) {
		if at := "/bin/" + name; !have[at] && !have["/usr/bin/"+name] {
			files = append(files, image.File{Path: at, Link: "busybox"})
		}
	}
	return append(files,
		image.File{Path: "/etc/passwd", Mode: 0o644, Content: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")},
		image.File{Path: "/etc/group", Mode: 0o644, Content: []byte("root:x:0:\nnogroup:x:65534:\n")},
		image.File{Path: "/etc/nsswitch.conf", Mode: 0o644, Content: []byte("passwd: files\ngroup: files\nhosts: files dns\n")}), nil
}
