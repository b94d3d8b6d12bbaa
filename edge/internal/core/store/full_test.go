package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

// fullDiskChild runs in a mount namespace of its own, with a small disk.
func fullDiskChild() {
	dir := os.Args[1]
	fail := func(format string, args ...any) {
		fmt.Printf(format+"\n", args...)
		os.Exit(1)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		fail("mounting: %v", err)
	}
	path := filepath.Join(dir, "edge.db")
	ctx := context.Background()
	s, err := store.Open(ctx, store.Config{Path: path})
	if err != nil {
		fail("Open: %v", err)
	}
	put := func(id uint64) error {
		return s.Update(ctx, func(tx *store.Tx) error { return tx.PutEntry(id, &storepb.Entry{Body: make([]byte, 3000)}) })
	}
	if err := put(0); err != nil {
		fail("first write: %v", err)
	}
	filler := filepath.Join(dir, "filler")
	for round := range uint64(3) {
		f, err := os.OpenFile(filler, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			fail("filler: %v", err)
		}
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
		f.Close()
		kept := round * 100
		for err = nil; err == nil && kept < round*100+50; {
			if err = put(kept + 1); err == nil {
				kept++
			}
		}
		if !errors.Is(err, store.ErrFull) {
			fail("round %d: a full disk gives %v", round, err)
		}
		if err := s.View(func(tx *store.Tx) error {
			if e, err := tx.Entry(0); err != nil || e == nil {
				return fmt.Errorf("entry 0: %v, %w", e, err)
			}
			return nil
		}); err != nil {
			fail("round %d: reading: %v", round, err)
		}
		os.Remove(filler)
		if err := put(kept + 1); err != nil {
			fail("round %d: when there is room again: %v", round, err)
		}
	}
	if err := s.Close(); err != nil {
		fail("Close: %v", err)
	}
	if s, err = store.Open(ctx, store.Config{Path: path}); err != nil || s.SetAside() != "" {
		fail("Open afterwards: %v", err)
	}
	if err := s.Check(); err != nil {
		fail("Check: %v", err)
	}
	s.Close()

	// A disk that is full from the start: a clear error and no partial file; later it works.
	other := filepath.Join(dir, "other.db")
	f, err := os.Create(filler)
	if err != nil {
		fail("filler: %v", err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	f.Close()
	if _, err := store.Open(ctx, store.Config{Path: other}); !errors.Is(err, store.ErrFull) {
		fail("Open on a full disk: %v", err)
	}
	os.Remove(filler)
	if s, err = store.Open(ctx, store.Config{Path: other}); err != nil {
		fail("Open when there is room again: %v", err)
	}
	s.Close()
	fmt.Println("fine")
}

func TestAFullDiskPasses(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it mounts a small disk in a mount namespace of its own")
	}
	cmd := child(t, "full", t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.Output()
	if err != nil || strings.TrimSpace(string(out)) != "fine" {
		t.Errorf("%v: %s", err, out)
	}
}
