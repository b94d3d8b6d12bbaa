package main_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/skerry-io/skerry/build/release/archive"
	"github.com/skerry-io/skerry/build/release/releasetest"
)

// minisign is a key and its signature of content, as https://jedisct1.github.io/minisign/
// describes them: the kind that signs the file itself. Real releases are signed by the other
// kind (TestShip_05).
func minisign(t *testing.T, seed byte, content []byte) (public string, signature []byte) {
	t.Helper()
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
	head := append([]byte("Ed"), bytes.Repeat([]byte{seed}, 8)...)
	encode := base64.StdEncoding.EncodeToString
	public = encode(append(bytes.Clone(head), key.Public().(ed25519.PublicKey)...))
	return public, fmt.Appendf(nil, "untrusted comment: a test\n%s\ntrusted comment: t\n%s\n", encode(append(head, ed25519.Sign(key, content)...)), encode(make([]byte, 64)))
}

// TestInstallScript: install.sh with a small release. TestShip_05 does the same with a real one.
func TestInstallScript(t *testing.T) {
	dir, at := t.TempDir(), time.Unix(1e9, 0)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(name string, content []byte) {
		t.Helper()
		must(os.WriteFile(filepath.Join(dir, name), content, 0o755))
	}
	program := bytes.Repeat([]byte("a program of no use\n"), 4000)
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	r := releasetest.Release{
		Dir: dir, Program: "cloudcore", Tarball: "skerry-cloudcore_v1.0.0_linux_" + runtime.GOARCH + ".tar.gz",
		Bundle: "airgap-" + runtime.GOARCH + ".tar", Foreign: "airgap-" + other + ".tar",
	}
	foreign := "skerry-cloudcore_v1.0.0_linux_" + other + ".tar.gz"
	entries := []archive.Entry{{Name: "usr/bin/cloudcore", Mode: 0o755, Content: program}}
	must(archive.WriteFile(filepath.Join(dir, r.Tarball), entries, at))
	must(archive.WriteFile(filepath.Join(dir, foreign), entries, at))
	sums, err := archive.Sums([]string{filepath.Join(dir, r.Tarball), filepath.Join(dir, foreign)})
	must(err)
	write("SHA256SUMS", sums)
	key, signature := minisign(t, 1, sums)
	r.OtherKey, _ = minisign(t, 2, nil)
	write("SHA256SUMS.minisig", signature)
	script, err := os.ReadFile("../install.sh")
	must(err)
	write("install.sh", bytes.Replace(script, []byte("\nKEY=\n"), []byte("\nKEY="+key+"\n"), 1))
	for bundle, tarball := range map[string]string{r.Bundle: r.Tarball, r.Foreign: foreign} {
		var in []archive.Entry
		for _, name := range []string{"SHA256SUMS", "SHA256SUMS.minisig", tarball} {
			e, err := archive.File(name, filepath.Join(dir, name))
			must(err)
			in = append(in, e)
		}
		must(archive.WriteFile(filepath.Join(dir, bundle), in, at))
	}
	releasetest.Installs(t, r, program)
	releasetest.Refusals(t, r)
}
