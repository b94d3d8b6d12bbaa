// Package release_test tests releases, with real ones: `make release-test` runs it, `make test`
// does not, since it compiles and packs for minutes. It needs root, the module proxy (for the
// pinned tools), busybox, rpm and qemu-user-static.
package release_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/skerry-io/skerry/edge/artefactrepo"
	"github.com/skerry-io/skerry/tests/cluster/binary"
)

// work is the folder of the releases that the tests share; it goes with them. RELEASES of the
// environment names one that stays, and whose releases are taken as they are: for work on these
// tests.
var work string

func TestMain(m *testing.M) {
	if work = os.Getenv("RELEASES"); work != "" {
		os.Exit(m.Run())
	}
	dir, err := os.MkdirTemp("", "skerry-release-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	work = dir
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// command runs a program and returns its standard output.
func command(t testing.TB, dir string, env []string, name string, args ...string) string {
	t.Helper()
	out, err := try(t.Context(), dir, env, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func try(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out), nil
}

// tool runs a pinned tool of build/tools/release.
func tool(t testing.TB, args ...string) string {
	t.Helper()
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	return command(t, root, []string{"CGO_ENABLED=0"}, "go", append([]string{"tool", "-modfile=build/tools/release/go.mod"}, args...)...)
}

// key makes a minisign key without a password in a folder and returns the file of the secret one,
// and the public one.
func key(ctx context.Context, root, dir string) (secret, public string, err error) {
	secret, file := filepath.Join(dir, "key"), filepath.Join(dir, "key.pub")
	if _, err = try(ctx, root, []string{"CGO_ENABLED=0"}, "go", "tool", "-modfile=build/tools/release/go.mod", "minisign", "-G", "-W", "-s", secret, "-p", file); err != nil {
		return "", "", err
	}
	raw, err := os.ReadFile(file)
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return secret, lines[len(lines)-1], err
}

// version is of the release that the tests share, newer of the next one.
const version, newer = "v0.1.0-rc1", "v0.1.0"

// minorBefore is the minor release of Kubernetes that the shared release has a second edgecore of.
const minorBefore = "1.36"

// registry would have the images; the name can't be resolved.
const registry = "registry.example.com/skerry"

// secret is the key that signs the releases of the tests.
var secret = sync.OnceValues(func() (string, error) {
	root, err := binary.Root()
	if err != nil {
		return "", err
	}
	if secret := filepath.Join(work, "key"); exists(secret) {
		return secret, nil
	}
	secret, _, err := key(context.Background(), root, work)
	return secret, err
})

// signed and next make releases of this checkout for this machine's architecture, each once.
var (
	signed = sync.OnceValues(func() (string, error) {
		repo := filepath.Join(work, "upgrades")
		if !exists(repo) {
			if _, err := artefactrepo.New(repo); err != nil {
				return "", err
			}
		}
		return made(version, "OLDER="+minorBefore, "UPGRADE_ROOT="+filepath.Join(repo, "root.json"))
	})
	next = sync.OnceValues(func() (string, error) { return made(newer, "OLDER=") })
)

// made makes a signed release in the folder of the tests. PROGRAMS of the environment lists its
// programs.
func made(version string, further ...string) (string, error) {
	root, err := binary.Root()
	if err != nil {
		return "", err
	}
	secret, err := secret()
	if err != nil {
		return "", err
	}
	out := filepath.Join(work, version)
	if exists(out) {
		return out, nil
	}
	env := []string{"SKERRY_SIGN_KEY=" + secret, "ARCHES=" + runtime.GOARCH, "REGISTRY=" + registry}
	_, err = try(context.Background(), root, append(env, further...), "build/release.sh", version, out)
	return out, err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// shared is the release that most tests look at.
func shared(t *testing.T) string { return of(t, signed) }

// upgrade is the one after it.
func upgrade(t *testing.T) string { return of(t, next) }

func of(t *testing.T, release func() (string, error)) string {
	t.Helper()
	dir, err := release()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// programs are the programs in the releases of these tests.
func programs() []string {
	if p := strings.Fields(os.Getenv("PROGRAMS")); len(p) > 0 {
		return p
	}
	return []string{"cloudcore", "edgecore", "kubectl-skerry"}
}

// named is the package of a program.
func named(program string) string {
	if program == "kubectl-skerry" {
		return program
	}
	return "skerry-" + program
}

// one is the only file of a folder that matches, among those of another Kubernetes.
func one(t *testing.T, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	found = slices.DeleteFunc(found, func(f string) bool { return strings.Contains(f, "+k8s") })
	if err != nil || len(found) != 1 {
		t.Fatalf("%s in %s: %v, %v", pattern, dir, found, err)
	}
	return found[0]
}
