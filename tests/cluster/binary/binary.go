// Package binary finds the repository and keeps the programs in its bin directory up to date.
//
// It owns bin/. It builds one program at a time, since linking Kubernetes takes up to 3 GB of
// memory, and holds a lock that other processes of ours honour, so tests of several packages may
// ask at once. A program that is up to date costs the check of `go build`, about a second, or some
// seconds and a place in the queue while other tests use both processors: `make test`, which has
// built them, names in SKERRY_BUILT those that need not be looked at again.
package binary

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const module = "github.com/skerry-io/skerry"

// Root is the directory of the repository that holds the working directory.
func Root() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("asking for the working directory: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		raw, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(raw, []byte("module "+module+"\n")) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is not in a checkout of %s: change into one", start, module)
		}
	}
}

// Build brings the named programs up to date and returns the path of each, in order. It uses the
// Makefile: flags that differ would compile Kubernetes twice.
func Build(ctx context.Context, root string, names ...string) ([]string, error) {
	built := strings.Fields(os.Getenv("SKERRY_BUILT"))
	var paths, stale []string
	for _, name := range names {
		paths = append(paths, filepath.Join(root, "bin", name))
		if !slices.Contains(built, name) {
			stale = append(stale, name)
		}
	}
	if len(stale) == 0 {
		return paths, nil
	}
	unlock, err := lock(root)
	if err != nil {
		return nil, err
	}
	defer unlock()
	for _, name := range stale {
		cmd := exec.CommandContext(ctx, "make", "--silent", "build-"+name)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("building %s: %w\n%s", name, err, bytes.TrimSpace(out))
		}
	}
	return paths, nil
}

// BuildStatic compiles a main package that needs neither version nor C library, such as the program
// of an image, to path.
func BuildStatic(ctx context.Context, root, path, pkg string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-ldflags", "-s -w", "-o", path, pkg)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", pkg, err, bytes.TrimSpace(out))
	}
	return nil
}

// BuildChanged compiles a main package to path, with the files of an overlay in place of those of
// the repository (see `go help build`).
func BuildChanged(ctx context.Context, root, path, pkg, overlay string) error {
	unlock, err := lock(root)
	if err != nil {
		return err
	}
	defer unlock()
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-ldflags", "-s -w "+os.Getenv("TEST_LDFLAGS"), "-overlay", overlay, "-o", path, pkg)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s with changes: %w\n%s", pkg, err, bytes.TrimSpace(out))
	}
	return nil
}

func lock(root string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Join(root, "bin"), 0o755); err != nil {
		return nil, fmt.Errorf("making bin: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(root, "bin", ".lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the lock of bin: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("locking bin: %w", err)
	}
	return func() { f.Close() }, nil
}
