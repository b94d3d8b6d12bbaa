package main

import (
	"os"
	"path/filepath"
	"testing"
)

// A backup is for root alone, whatever had its name before.
func TestFresh(t *testing.T) {
	for name, prepare := range map[string]func(path, other string) error{
		"none":                  func(string, string) error { return nil },
		"a file for all":        func(path, _ string) error { return os.WriteFile(path, []byte("old"), 0o644) },
		"a link to such a file": func(path, other string) error { return os.Symlink(other, path) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path, other := filepath.Join(dir, "edge1.backup.part"), filepath.Join(dir, "other")
			if err := os.WriteFile(other, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := prepare(path, other); err != nil {
				t.Fatal(err)
			}
			f, err := fresh(path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteString("secret"); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			if i, err := os.Lstat(path); err != nil || i.Mode() != 0o600 {
				t.Errorf("%v, %v", i, err)
			}
			if raw, err := os.ReadFile(other); err != nil || len(raw) > 0 {
				t.Errorf("the other file has %q, %v", raw, err)
			}
		})
	}
}
