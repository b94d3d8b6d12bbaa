package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// As kubectl cp calls it.
func TestTar_ThereAndBack(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(from, "d", "e"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(from, "d", "e", "f"), []byte("content"), 0o640); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := runTar([]string{"cf", "-", filepath.Join(from, "d")}, nil, &archive); err != nil {
		t.Fatal(err)
	}
	if err := runTar([]string{"-xmf", "-", "--no-same-owner", "-C", to}, &archive, nil); err != nil {
		t.Fatal(err)
	}
	got := filepath.Join(to, from, "d", "e", "f")
	if b, err := os.ReadFile(got); err != nil || string(b) != "content" {
		t.Errorf("got %q, %v", b, err)
	}
	if info, err := os.Stat(got); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("got %v, %v", info, err)
	}
	if err := runTar([]string{"tf", "-"}, nil, nil); err == nil || !strings.Contains(err.Error(), `not "tf"`) {
		t.Errorf("got %v", err)
	}
}
