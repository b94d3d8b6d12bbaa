// Package binary finds the repository and keeps the programs in its bin directory up to date.
//
// It owns bin/. It builds one program at a time, since linking Kubernetes takes up to 3 GB of memory, and holds a lock that other processes of ours honour,
// so tests of several packages may ask at once. A program that is up to date costs what `go build` needs to see that, about a second.
package binary

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

// packages says where each program's main package is.
func packages() map[string]string {
	return map[string]string{
		"kubeplane":    "./cloud/cmd/kubeplane",
		"cloudcore":    "./cloud/cmd/cloudcore",
		"edgecore":     "./edge/cmd/edgecore",
		"trial":        "./tests/cmd/trial",
		"plainkubelet": "./tests/cmd/plainkubelet",
	}
}

// Build brings the named programs up to date and returns the path of each, in order.
func Build(ctx context.Context, root string, names ...string) ([]string, error) {
	unlock, err := lock(root)
	if err != nil {
		return nil, err
	}
	defer unlock()
	flags, err := LinkerFlags(ctx, root)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, name := range names {
		pkg, ok := packages()[name]
		if !ok {
			return nil, fmt.Errorf("no program is called %s", name)
		}
		path := filepath.Join(root, "bin", name)
		if err := compile(ctx, root, path, pkg, flags); err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// BuildSmall compiles a main package of ours that does not link Kubernetes to path.
func BuildSmall(ctx context.Context, root, path, pkg string) error {
	return compile(ctx, root, path, pkg, "-s -w")
}

func compile(ctx context.Context, root, path, pkg, flags string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", flags, "-o", path, pkg)
	cmd.Dir = root
	// The same settings as everywhere else, so that the build cache is shared; static programs, so that they run in an empty image.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", pkg, err, bytes.TrimSpace(out))
	}
	return nil
}

// LinkerFlags sets the version of this build and, as a kubelet without it would report v0.0.0-master, that of Kubernetes.
func LinkerFlags(ctx context.Context, root string) (string, error) {
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return "", fmt.Errorf("reading go.mod: %w", err)
	}
	m := regexp.MustCompile(`(?m)^\s*k8s\.io/kubernetes v(\d+)\.(\d+)(\.\S+)$`).FindSubmatch(mod)
	if m == nil {
		return "", errors.New("go.mod requires no k8s.io/kubernetes")
	}
	const version = "k8s.io/component-base/version"
	flags := fmt.Sprintf("-s -w -X %s.gitVersion=v%s.%s%s -X %s.gitMajor=%s -X %s.gitMinor=%s", version, m[1], m[2], m[3], version, m[1], version, m[2])
	cmd := exec.CommandContext(ctx, "git", "describe", "--tags", "--always", "--dirty")
	cmd.Dir = root
	// Outside of git (a source archive) the build says v0.0.0-dev.
	if out, err := cmd.Output(); err == nil {
		flags += " -X " + module + "/common/version.version=" + strings.TrimSpace(string(out))
	}
	return flags, nil
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
