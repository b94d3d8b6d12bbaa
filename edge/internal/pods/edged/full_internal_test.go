package edged

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/skerry-io/skerry/tests/smalldisk"
)

func TestMain(m *testing.M) {
	if !smalldisk.Child(map[string]func(string) error{"full": fullDisk}) {
		os.Exit(m.Run())
	}
}

// A kubelet that has run before starts on a full disk, and removes unused images and dead
// containers; a first one waits for room.
func TestFullDisk(t *testing.T) { smalldisk.Run(t, "full") }

func fullDisk(dir string) error {
	before := filepath.Join(dir, "before")
	if err := errors.Join(os.Mkdir(before, 0o700), os.WriteFile(filepath.Join(before, cpuState), []byte("{}"), 0o600)); err != nil {
		return err
	}
	first := filepath.Join(dir, "first")
	if err := os.Mkdir(first, 0o700); err != nil {
		return err
	}
	fill := os.WriteFile(filepath.Join(dir, "fill"), bytes.Repeat([]byte("x"), 4<<20), 0o600)
	if !errors.Is(fill, syscall.ENOSPC) {
		return fmt.Errorf("filling the disk: %w", fill)
	}
	if err := writable(first); err == nil || !strings.Contains(err.Error(), "is full; make room") {
		return fmt.Errorf("a first kubelet: %w", err)
	}
	if err := writable(before); err != nil {
		return fmt.Errorf("a later one: %w", err)
	}
	return nil
}
