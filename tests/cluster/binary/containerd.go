package binary

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// NextContainerd is the version of a device's containerd that is tested beside the machine's own:
// Kubernetes 1.38 needs 2.x.
const NextContainerd = "v2.1.4"

// Containerd builds the containerd of a version of its Go module, such as v2.1.4, with its shim and
// ctr, once for this checkout, and returns their directory. It takes minutes.
func Containerd(ctx context.Context, root, version string) (dir string, err error) {
	unlock, err := lock(root)
	if err != nil {
		return "", err
	}
	defer unlock()
	module := "github.com/containerd/containerd"
	if !strings.HasPrefix(version, "v1.") {
		module += "/v2"
	}
	dir = filepath.Join(root, "build", "out", "containerd-"+version)
	last := filepath.Join(dir, "containerd")
	if _, err := os.Stat(last); err == nil {
		return dir, nil
	}
	source := filepath.Join(dir, "source")
	if err := os.MkdirAll(source, 0o755); err != nil {
		return "", fmt.Errorf("making %s: %w", source, err)
	}
	// Its own go.mod replaces or excludes modules, so that `go install` refuses it.
	file := fmt.Sprintf("module source\n\ngo 1.24\n\nrequire %s %s\n", module, version)
	if err := os.WriteFile(filepath.Join(source, "go.mod"), []byte(file), 0o644); err != nil {
		return "", fmt.Errorf("writing the module for containerd: %w", err)
	}
	for _, program := range []string{"containerd-shim-runc-v2", "ctr", "containerd"} {
		cmd := exec.CommandContext(ctx, "go", "build", "-mod=mod", "-tags", "no_btrfs,no_devmapper,no_zfs", "-o", filepath.Join(dir, program), module+"/cmd/"+program)
		cmd.Dir = source
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("building %s %s: %w\n%s", program, version, err, out)
		}
	}
	return dir, nil
}
