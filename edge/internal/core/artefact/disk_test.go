package artefact_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/skerry-io/skerry/edge/artefactrepo"
	"github.com/skerry-io/skerry/edge/internal/core/artefact"
	"github.com/skerry-io/skerry/tests/smalldisk"
)

func TestMain(m *testing.M) {
	if smalldisk.Child(map[string]func(string) error{"download": fullDisk}) {
		return
	}
	os.Exit(m.Run())
}

// A disk that fills up while a file is fetched, or a program unpacked: the upgrade fails for now,
// leaves no part of a program, and its bytes can be removed.
func TestFleet_13_DiskFillsUpDuringADownload(t *testing.T) { smalldisk.Run(t, "download") }

func fullDisk(dir string) error {
	work, err := os.MkdirTemp("", "")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	repo, err := artefactrepo.New(work)
	if err != nil {
		return err
	}
	for version, content := range map[string][]byte{"v1.4.0": program(4 << 20), "v1.5.0": bytes.Repeat([]byte("program "), 512<<10), "v1.6.0": []byte("small")} {
		if _, err := repo.Add(version, "amd64", content, nil); err != nil {
			return err
		}
	}
	ctx, from, bin := context.Background(), artefact.Files(work), filepath.Join(dir, "bin")
	store := artefact.New(artefact.Config{Keys: []string{work}, Dir: filepath.Join(dir, "artefacts"), Programs: bin, Arch: "amd64", Now: time.Now})
	c, err := store.Refresh(ctx, from, false)
	if err != nil {
		return err
	}
	for version, unpacks := range map[string]bool{"v1.4.0": false, "v1.5.0": true} {
		t, _, err := c.Find(version, "amd64", "")
		if err != nil {
			return err
		}
		err = store.Fetch(ctx, from, t, func(int64) {})
		if unpacks && err == nil {
			_, err = store.Unpack(t, "")
		}
		if !errors.Is(err, syscall.ENOSPC) || errors.Is(err, artefact.ErrWrongHash) {
			return fmt.Errorf("%s: want ENOSPC, got %w", version, err)
		}
		if left, _ := filepath.Glob(filepath.Join(bin, "*")); len(left) > 0 {
			return fmt.Errorf("%s left %v", version, left)
		}
		if err := store.Clean(artefact.Target{}); err != nil {
			return err
		}
	}
	large := program(4 << 20)
	copied := artefact.Target{Digest: artefactrepo.Digest(large), Size: int64(len(large))}
	if _, err := store.Copy(ctx, giving(large), copied, func(int64) {}); !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("a copy from a neighbour: want ENOSPC, got %w", err)
	}
	if left, _ := filepath.Glob(filepath.Join(bin, "*")); len(left) > 0 {
		return fmt.Errorf("a copy from a neighbour left %v", left)
	}
	t, _, err := c.Find("v1.6.0", "amd64", "")
	if err != nil {
		return err
	}
	if err := store.Fetch(ctx, from, t, func(int64) {}); err != nil {
		return err
	}
	_, err = store.Unpack(t, "")
	return err
}

// giving is a device of the site that has a program.
type giving []byte

func (g giving) Open(_ context.Context, _ artefact.Target, offset int64, _ map[string]bool) (io.ReadCloser, string, error) {
	return io.NopCloser(bytes.NewReader(g[offset:])), "edge2", nil
}
