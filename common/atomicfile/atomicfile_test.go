package atomicfile_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/skerry-io/skerry/common/atomicfile"
	"github.com/skerry-io/skerry/tests/smalldisk"
)

func TestMain(m *testing.M) {
	if !smalldisk.Child(map[string]func(string) error{"full": full}) {
		os.Exit(m.Run())
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, c := range []struct {
		data string
		mode fs.FileMode
	}{{"one", 0o644}, {"two, longer", 0o600}, {"", 0o640}} {
		if err := atomicfile.Write(path, []byte(c.data), c.mode); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != c.data {
			t.Errorf("%q, %v; want %q", got, err, c.data)
		}
		if i, err := os.Stat(path); err != nil || i.Mode() != c.mode {
			t.Errorf("%v, %v; want %v", i.Mode(), err, c.mode)
		}
	}
	if names, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(names) != 0 {
		t.Errorf("left behind: %v, %v", names, err)
	}
	if err := atomicfile.Write(filepath.Join(dir, "none", "f"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in no directory: %v", err)
	}
}

// On a full disk the old file stays, without a temporary one.
func TestAFullDiskLeavesTheOldFile(t *testing.T) { smalldisk.Run(t, "full") }

func full(dir string) error {
	path := filepath.Join(dir, "f")
	if err := atomicfile.Write(path, []byte("old"), 0o600); err != nil {
		return err
	}
	if err := atomicfile.Write(path, make([]byte, 3<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("3 MiB on 2: %w", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "old" {
		return fmt.Errorf("%q is left: %w", got, err)
	}
	all, err := os.ReadDir(dir)
	if err != nil || len(all) != 1 {
		return fmt.Errorf("%d files: %w", len(all), err)
	}
	return nil
}
