package binary

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Before is the commit that stands for the previous release. Each release sets it to the tag of the
// one before. Until the first, it is the last commit without rescue sessions, and with today's
// Kubernetes, so that only packages of this repository are compiled for it.
const Before = "7359af26"

// BeforeVersion is the version that its programs print.
const BeforeVersion = "v0.0.1"

// ErrNoHistory is returned by BuildBefore where the checkout has no commit Before, as a shallow
// one.
var ErrNoHistory = errors.New("this checkout has no commit " + Before)

// BuildBefore builds programs of the previous release, once for this checkout, and returns the path
// of each, in order.
func BuildBefore(ctx context.Context, root string, names ...string) ([]string, error) {
	unlock, err := lock(root)
	if err != nil {
		return nil, err
	}
	defer unlock()
	dir := filepath.Join(root, "build", "out", "before-"+Before)
	var paths []string
	for _, name := range names {
		path := filepath.Join(dir, name)
		paths = append(paths, path)
		if _, err := os.Stat(path); err == nil {
			continue
		}
		if err := buildBefore(ctx, root, dir, name); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

func buildBefore(ctx context.Context, root, dir, name string) error {
	source := filepath.Join(dir, "source")
	if err := os.MkdirAll(source, 0o755); err != nil {
		return fmt.Errorf("making %s: %w", source, err)
	}
	if err := exec.CommandContext(ctx, "git", "-C", root, "cat-file", "-e", Before+"^{commit}").Run(); err != nil {
		return fmt.Errorf("%w: %w", ErrNoHistory, err)
	}
	for _, line := range []string{
		"git -C " + quoted(root) + " archive " + Before + " | tar -x -C " + quoted(source),
		"make -C " + quoted(source) + " --silent build-" + name + " VERSION=" + BeforeVersion,
		"mv " + quoted(filepath.Join(source, "bin", name)) + " " + quoted(filepath.Join(dir, name)),
	} {
		if out, err := exec.CommandContext(ctx, "sh", "-c", line).CombinedOutput(); err != nil {
			return fmt.Errorf("building %s of commit %s: %w\n%s", name, Before, err, out)
		}
	}
	return nil
}

// quoted is a word of a shell.
func quoted(path string) string { return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'" }
