package edged

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The kubelet ends where it can't make the directories of logs, and with it edgecore: it waits
// instead, with the remedy.
func TestLogDirectories(t *testing.T) {
	dir := t.TempDir()
	pods, containers := filepath.Join(dir, "log", "pods"), filepath.Join(dir, "log", "containers")
	for range 2 {
		if err := logDirectories(pods, containers); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := logDirectories(pods, filepath.Join(file, "containers"))
	if err == nil || !strings.Contains(err.Error(), file+"/containers") || !strings.Contains(err.Error(), "make room on its disk") {
		t.Errorf("got %v", err)
	}
}
