package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skerry-io/skerry/edge/internal/core/store/boltfile"
)

// broken is a file of which a part can't be read.
type broken struct {
	io.ReaderAt
	from, to int64
}

func (b broken) ReadAt(p []byte, at int64) (int, error) {
	if at < b.to && at+int64(len(p)) > b.from {
		return 0, fmt.Errorf("read: %w", syscall.EIO)
	}
	return b.ReaderAt.ReadAt(p, at)
}

// A transient disk error has no effect: the file is read again. Only a persistent one is damage,
// and so is a truncated file.
func TestClaims_19_ReadErrorThatPassesIsNoDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edge.db")
	s, err := Open(t.Context(), Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	page := int64(os.Getpagesize())
	for name, part := range map[string][2]int64{"the meta pages": {0, 2 * page}, "the tree": {2 * page, info.Size()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				walk := func(fails time.Duration) error {
					begin = time.Now()
					return verifyPatiently(t.Context(), func() error {
						var file io.ReaderAt = f
						if time.Since(begin) < fails {
							file = broken{f, part[0], part[1]}
						}
						return boltfile.Walk(file, info.Size(), strict{})
					})
				}
				if err := walk(readPatience / 2); err != nil {
					t.Errorf("an error that passes: %v", err)
				}
				if err := walk(time.Hour); !errors.Is(err, ErrDamaged) || time.Since(begin) < readPatience {
					t.Errorf("one that lasts, after %s: %v", time.Since(begin), err)
				}
				if err := boltfile.Walk(f, 2*page, strict{}); !errors.Is(err, ErrDamaged) {
					t.Errorf("a file that is cut off: %v", err)
				}
			})
		})
	}
}

func TestClaims_19_DirectoryInThePlaceOfTheStoreIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edge.db")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{Path: path}); err == nil || !strings.Contains(err.Error(), path+" is a directory") {
		t.Errorf("opened a directory: %v", err)
	}
}

// A full disk has no space for the mark of an older version's store: it is opened nevertheless.
func TestOpen_WithoutRoomForTheMark(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edge.db")
	s, err := Open(t.Context(), Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Close(), os.Remove(path+".lock"), os.Symlink("/dev/full", path+".lock")); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(t.Context(), Config{Path: path, Locked: true}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A missing or empty file where a store was before is reported as a loss; on a new device it is
// not.
func TestClaims_18_EmptyOrMissingFileIsNamedAsLoss(t *testing.T) {
	key := make([]byte, 32)
	for name, tc := range map[string]struct {
		key  []byte
		lose func(path string) error
		lost bool
	}{
		"a new device":            {lose: nil},
		"opened again":            {lose: func(string) error { return nil }},
		"the file is gone":        {lose: os.Remove, lost: true},
		"the file is empty":       {lose: func(path string) error { return os.Truncate(path, 0) }, lost: true},
		"gone, the key in a TPM":  {key: key, lose: os.Remove, lost: true},
		"empty, the key in a TPM": {key: key, lose: func(path string) error { return os.Truncate(path, 0) }, lost: true},
		"moved away with its key": {lose: func(path string) error {
			return errors.Join(os.Remove(path), os.Remove(path+".key"), os.Remove(path+".lock"))
		}},
		"a crash before it was made": {lose: func(path string) error {
			return errors.Join(os.Remove(path), os.Remove(path+".key"), os.Truncate(path+".lock", 0))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			config := Config{Path: filepath.Join(t.TempDir(), "edge.db"), Key: tc.key}
			s, err := Open(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			if tc.lose != nil {
				if err := errors.Join(s.Close(), tc.lose(config.Path)); err != nil {
					t.Fatal(err)
				}
				if s, err = Open(t.Context(), config); err != nil {
					t.Fatal(err)
				}
			}
			defer s.Close()
			if got := len(s.Lost()) > 0; got != tc.lost {
				t.Errorf("lost: %q, want %v", s.Lost(), tc.lost)
			}
		})
	}
}
