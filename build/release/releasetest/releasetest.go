// Package releasetest holds the damages that install.sh must refuse, for tests with a small release
// and with a real one.
//
// It owns the table of damages. Refusals works on copies; it never changes the release or the
// machine, since it installs into folders of the test.
package releasetest

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Release is a signed release on disk.
type Release struct {
	Dir      string // its folder, with install.sh
	Program  string // of which it has a package for this machine: "cloudcore"
	Tarball  string // the name of that package
	Bundle   string // the name of the bundle for this machine's architecture, and for another one's
	Foreign  string
	OtherKey string // a minisign public key without signatures
}

// run runs install.sh into a fresh folder and returns its exit code, its output and the installed
// program.
func (r Release) run(t *testing.T, args ...string) (code int, said string, installed []byte) {
	t.Helper()
	root, temporary := filepath.Join(t.TempDir(), "root"), t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sh", append([]string{filepath.Join(r.Dir, "install.sh"), "--program", r.Program, "--root", root}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+temporary)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("install.sh left %v behind (%v)", left, err)
	}
	installed, err = os.ReadFile(filepath.Join(root, "usr/bin", r.Program))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if _, err := os.Stat(root); err == nil && installed == nil {
		t.Errorf("install.sh made %s and installed nothing", root)
	}
	return cmd.ProcessState.ExitCode(), stderr.String(), installed
}

// refused expects exit code 2, one line that has the word, and an empty folder.
func (r Release) refused(t *testing.T, word string, args ...string) {
	t.Helper()
	code, said, installed := r.run(t, args...)
	if code != 2 || installed != nil || strings.Count(said, "\n") != 1 || !strings.Contains(said, word) {
		t.Errorf("exit code %d, %d bytes installed, said:\n%swant one line with %q, exit code 2 and nothing", code, len(installed), said, word)
	}
}

// copied is a copy of the release in which one byte of a file is another one.
func (r Release) copied(t *testing.T, name string, at func([]byte) int) string {
	t.Helper()
	dir := t.TempDir()
	for _, n := range []string{"SHA256SUMS", "SHA256SUMS.minisig", r.Tarball, r.Bundle} {
		raw, err := os.ReadFile(filepath.Join(r.Dir, n))
		if err != nil {
			t.Fatal(err)
		}
		if n == name {
			raw[at(raw)] ^= 1
		}
		if err := os.WriteFile(filepath.Join(dir, n), raw, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Installs shows that the release is installed from a folder, a bundle and a URL, as its
// program is.
func Installs(t *testing.T, r Release, program []byte) {
	server := httptest.NewServer(http.FileServer(http.Dir(r.Dir)))
	defer server.Close()
	for name, source := range map[string]string{"folder": r.Dir, "bundle": filepath.Join(r.Dir, r.Bundle), "URL": server.URL} {
		t.Run(name, func(t *testing.T) {
			code, said, installed := r.run(t, source)
			if code != 0 || !bytes.Equal(installed, program) {
				t.Errorf("exit code %d, said:\n%s%d bytes installed, want %d", code, said, len(installed), len(program))
			}
		})
	}
}

// Refusals damages the release in each way and expects install.sh to refuse it.
func Refusals(t *testing.T, r Release) {
	bundle := func(dir string) string { return filepath.Join(dir, r.Bundle) }
	tarball, err := os.ReadFile(filepath.Join(r.Dir, r.Tarball))
	if err != nil {
		t.Fatal(err)
	}
	inBundle := func(raw []byte) int { return bytes.Index(raw, tarball) + len(tarball)/2 }
	signature := func(raw []byte) int { return bytes.IndexByte(raw, '\n') + 40 }
	for name, at := range map[string]func([]byte) int{
		"first": func([]byte) int { return 0 }, "middle": func(b []byte) int { return len(b) / 2 }, "last": func(b []byte) int { return len(b) - 1 },
	} {
		t.Run("byte of the package: "+name, func(t *testing.T) { r.refused(t, "differs", r.copied(t, r.Tarball, at)) })
		t.Run("byte of the sums: "+name, func(t *testing.T) { r.refused(t, "signature", r.copied(t, "SHA256SUMS", at)) })
	}
	t.Run("byte of the signature", func(t *testing.T) { r.refused(t, "signature", r.copied(t, "SHA256SUMS.minisig", signature)) })
	t.Run("byte in the bundle", func(t *testing.T) { r.refused(t, "differs", bundle(r.copied(t, r.Bundle, inBundle))) })
	t.Run("byte, and a sum by hand", func(t *testing.T) {
		r.refused(t, "differs", "--sha256", sumOf(t, filepath.Join(r.Dir, "SHA256SUMS")), r.copied(t, r.Tarball, func(b []byte) int { return len(b) / 2 }))
	})
	t.Run("another sum by hand", func(t *testing.T) { r.refused(t, "--sha256", "--sha256", strings.Repeat("0", 64), r.Dir) })
	t.Run("another key", func(t *testing.T) { r.refused(t, "key", "--key", r.OtherKey, r.Dir) })
	t.Run("no key at all", func(t *testing.T) { r.refused(t, "key", "--key", "RWQ=", r.Dir) })
	t.Run("bundle for another architecture", func(t *testing.T) { r.refused(t, "not for", filepath.Join(r.Dir, r.Foreign)) })
	t.Run("no such source", func(t *testing.T) { r.refused(t, "there is no", filepath.Join(r.Dir, "none")) })
	t.Run("unknown flag", func(t *testing.T) { r.refused(t, "unknown flag", "--trust-me", r.Dir) })
	raw, err := os.ReadFile(bundle(r.Dir))
	if err != nil {
		t.Fatal(err)
	}
	for name, length := range map[string]int{"empty": 0, "within a header": 300, "half": len(raw) / 2, "without its end": bytes.Index(raw, tarball) + len(tarball) - 1} {
		t.Run("truncated bundle: "+name, func(t *testing.T) {
			short := filepath.Join(t.TempDir(), r.Bundle)
			if err := os.WriteFile(short, raw[:length], 0o644); err != nil {
				t.Fatal(err)
			}
			r.refused(t, "", short)
		})
	}
}

func sumOf(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "sha256sum", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out[:64])
}
