package archive_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/skerry-io/skerry/build/release/archive"
)

// The order of the entries, the folder, and the files' own times and owners are not seen
// in an archive.
func TestSameInputSameBytes(t *testing.T) {
	at := time.Unix(1e9, 0)
	make := func(touched time.Time, backwards bool) []byte {
		t.Helper()
		dir := t.TempDir()
		var entries []archive.Entry
		for name, mode := range map[string]os.FileMode{"b": 0o700, "a": 0o640, "c/d": 0o604} {
			path := filepath.Join(dir, filepath.Base(name))
			if err := os.WriteFile(path, []byte(name), mode); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, touched, touched); err != nil {
				t.Fatal(err)
			}
			e, err := archive.File(name, path)
			if err != nil {
				t.Fatal(err)
			}
			entries = append(entries, e)
		}
		if backwards {
			slices.Reverse(entries)
		}
		out := filepath.Join(dir, "out.tar.gz")
		if err := archive.WriteFile(out, entries, at); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	if !bytes.Equal(make(time.Unix(1, 0), false), make(time.Unix(2e9, 0), true)) {
		t.Error("the same files give different archives")
	}
}

func TestSums(t *testing.T) {
	dir := t.TempDir()
	b, a := filepath.Join(dir, "b"), filepath.Join(dir, "a")
	for path, content := range map[string]string{a: "", b: "abc"} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := archive.Sums([]string{b, a})
	// FIPS 180-2, the sums of the empty string and of "abc".
	want := "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  a\n" +
		"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  b\n"
	if err != nil || string(got) != want {
		t.Errorf("%v\n%s", err, got)
	}
}
