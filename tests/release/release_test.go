package release_test

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/build/release/releasetest"
	"github.com/skerry-io/skerry/tests/cluster/binary"
)

// TestShip_01_SameCommitSameBytes: the same commit, checked out in two folders and built by two
// callers with different environments, the second with an empty cache, gives the same files to the
// last byte. ARCHES and PROGRAMS of the environment select them. WARM=1 leaves the second the
// first's cache, which shows less in a third of the time.
func TestShip_01_SameCommitSameBytes(t *testing.T) {
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	secret, _, err := key(t.Context(), root, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var built []map[string][]byte
	for name, env := range map[string][]string{
		"one":                  {"TZ=UTC", "LC_ALL=C"},
		"another one, further": {"TZ=Asia/Tokyo", "LC_ALL=C.UTF-8", "GOFLAGS=-mod=mod", "GOCACHE=" + filepath.Join(t.TempDir(), "cache")},
	} {
		if os.Getenv("WARM") == "1" {
			env = slices.DeleteFunc(env, func(e string) bool { return strings.HasPrefix(e, "GOCACHE=") })
		}
		dir := filepath.Join(t.TempDir(), name)
		command(t, root, nil, "git", "clone", "--quiet", root, dir)
		command(t, dir, append(env, "SKERRY_SIGN_KEY="+secret), "make", "release", "VERSION="+version)
		files := map[string][]byte{}
		out := filepath.Join(dir, "build/out/release", version)
		entries, err := os.ReadDir(out)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if files[e.Name()], err = os.ReadFile(filepath.Join(out, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
		built = append(built, files)
	}
	for name, content := range built[0] {
		if !bytes.Equal(content, built[1][name]) {
			t.Errorf("%s differs", name)
		}
	}
	if len(built[0]) != len(built[1]) || built[0]["SHA256SUMS.minisig"] == nil || len(built[0]) < 10 {
		t.Errorf("%d files and %d", len(built[0]), len(built[1]))
	}
}

// TestShip_05_ChangedReleaseIsRefused: one byte changed, another key, a truncated bundle, another
// architecture: install.sh refuses a real, signed release in one line, with exit code 2, and
// without a change.
func TestShip_05_ChangedReleaseIsRefused(t *testing.T) {
	dir := shared(t)
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := key(t.Context(), root, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	program := programs()[0]
	r := releasetest.Release{
		Dir: dir, Program: program, OtherKey: other,
		Tarball: filepath.Base(one(t, dir, named(program)+"_*_linux_"+runtime.GOARCH+".tar.gz")),
		Bundle:  "airgap-" + runtime.GOARCH + ".tar", Foreign: "airgap-foreign.tar",
	}
	// A bundle without this machine's package, as one for another architecture is.
	foreign := t.TempDir()
	command(t, foreign, nil, "tar", "-xf", filepath.Join(dir, r.Bundle), "SHA256SUMS", "SHA256SUMS.minisig")
	command(t, foreign, nil, "tar", "-cf", filepath.Join(dir, r.Foreign), "SHA256SUMS", "SHA256SUMS.minisig")
	content, err := os.ReadFile(one(t, dir, program+"_"+version+"_linux_"+runtime.GOARCH))
	if err != nil {
		t.Fatal(err)
	}
	releasetest.Installs(t, r, content)
	releasetest.Refusals(t, r)
}
