package edged

import (
	"bytes"
	"context"
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
	if !smalldisk.Child(map[string]func(string) error{"full": fullDisk, "reserve": reserveOnFullDisk}) {
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

// A kubelet on a disk that another program fills to the last byte, twice, has room for a checkpoint
// each time.
func TestReserve(t *testing.T) { smalldisk.Run(t, "reserve") }

func reserveOnFullDisk(dir string) error {
	root, fill := filepath.Join(dir, "kubelet"), filepath.Join(dir, "fill")
	ctx, r := context.Background(), newReserve(root)
	if r.adjust(ctx); r.exists() {
		return errors.New("a reserve before the first kubelet")
	}
	if err := os.Mkdir(root, 0o700); err != nil {
		return err
	}
	for range 2 {
		if r.adjust(ctx); !r.exists() {
			return errors.New("no reserve on an empty disk")
		}
		if err := os.WriteFile(fill, bytes.Repeat([]byte("x"), 4<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
			return fmt.Errorf("filling the disk: %w", err)
		}
		r.adjust(ctx)
		if err := os.WriteFile(filepath.Join(root, "checkpoint"), bytes.Repeat([]byte("x"), 64<<10), 0o600); err != nil {
			return fmt.Errorf("a checkpoint on the full disk: %w", err)
		}
		if r.adjust(ctx); r.exists() {
			return errors.New("a reserve on a full disk")
		}
		if err := os.Remove(fill); err != nil {
			return err
		}
	}
	return nil
}

func (r *reserve) exists() bool {
	_, err := os.Stat(r.path)
	return err == nil
}
