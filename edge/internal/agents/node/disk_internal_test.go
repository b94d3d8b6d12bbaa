package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/tests/smalldisk"
)

func TestMain(m *testing.M) {
	if !smalldisk.Child(map[string]func(string) error{"idle": idle, "read-only": readOnly, "aborted": aborted}) {
		os.Exit(m.Run())
	}
}

// An idle device is not reported as full forever because of an old failed write of its store.
func TestADiskHasRoomAgain(t *testing.T) { smalldisk.Run(t, "idle") }

func idle(dir string) error {
	ctx := context.Background()
	s, err := store.Open(ctx, store.Config{Path: filepath.Join(dir, "store.db")})
	if err != nil {
		return err
	}
	defer s.Close()
	d := NewDisk(dir, s)
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 4<<20), 0o600); err == nil {
		return errors.New("4 MiB fit on 2")
	}
	for i := 0; !d.full(); i++ {
		_ = s.Update(ctx, func(tx *store.Tx) error { return tx.SetState("test", fmt.Sprint(i), make([]byte, 64<<10)) })
	}
	if d.refresh(ctx); d.Status().Problem == "" {
		return errors.New("a full disk has no problem")
	}
	if err := os.Remove(filler); err != nil {
		return err
	}
	if d.refresh(ctx); d.Status().Problem != "" {
		return fmt.Errorf("with room: %s", d.Status().Problem)
	}
	return nil
}

// A disk that became read-only is a problem that the status names, of a running edgecore and of one
// that can't start.
func TestClaims_39_ReadOnlyDiskIsNamed(t *testing.T) { smalldisk.Run(t, "read-only") }

func readOnly(dir string) error {
	d := NewDisk(dir, nil)
	if s := d.Status(); s.Problem != "" {
		return fmt.Errorf("a writable disk: %s", s.Problem)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return err
	}
	if s := d.Status(); !strings.Contains(s.Problem, "read-only") || !strings.Contains(s.Problem, "remount,rw") {
		return fmt.Errorf("problem %q", s.Problem)
	}
	return nil
}

// A file system that the kernel has ended after an error is one as well, though its files are open
// for writing and statfs(2) may not show it.
func TestClaims_39_AbortedFileSystemIsNamed(t *testing.T) {
	if _, err := exec.LookPath("mkfs.ext4"); err != nil {
		t.Skip(err)
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skip(err)
	}
	smalldisk.Run(t, "aborted")
}

func aborted(dir string) error {
	image, err := os.CreateTemp("", "aborted") // 2 MiB have no room for a journal
	if err != nil {
		return err
	}
	defer os.Remove(image.Name())
	disk := filepath.Join(dir, "disk")
	if err := errors.Join(image.Truncate(16<<20), image.Close(), os.Mkdir(disk, 0o700)); err != nil {
		return err
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-F", image.Name()}, {"mount", "-o", "loop,errors=remount-ro", image.Name(), disk}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", args, err, out)
		}
	}
	defer func() { _ = unix.Unmount(disk, unix.MNT_DETACH) }()
	s, err := store.Open(context.Background(), store.Config{Path: filepath.Join(disk, storeFile)})
	if err != nil {
		return err
	}
	defer s.Close()
	d := NewDisk(disk, s)
	if s := d.Status(); s.Problem != "" {
		return fmt.Errorf("a writable disk: %s", s.Problem)
	}
	if out, err := exec.Command("mount", "-o", "remount,abort", disk).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if s := d.Status(); !strings.Contains(s.Problem, "read-only") {
		return fmt.Errorf("problem %q", s.Problem)
	}
	return nil
}
