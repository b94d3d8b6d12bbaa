// Package golden compares a test's result with a file of its package.
//
// UPDATE=1 in the environment writes the files first. Any goroutine of a test may call it.
package golden

import (
	"io/fs"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Check compares a text with a file.
func Check(t testing.TB, file, text string) {
	t.Helper()
	CheckIn(t, os.DirFS("."), file, text)
}

// CheckIn is Check with the files that are read, for a test that may run without its folder.
func CheckIn(t testing.TB, files fs.FS, file, text string) {
	t.Helper()
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := fs.ReadFile(files, file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}
