package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/core/store/boltfile"
)

// A read error that lasts for readPatience is damage: the file is then set aside, where it can be
// read again once the disk can.
const (
	readPatience = 30 * time.Second
	readPause    = time.Second
)

// verifyPatiently waits for a disk that can't be read to pass. The error is a *DamageError where it
// does not.
func verifyPatiently(ctx context.Context, verify func() error) error {
	end := time.Now().Add(readPatience)
	for {
		err := verify()
		failed := (*boltfile.ReadError)(nil)
		if !errors.As(err, &failed) {
			return err
		}
		klog.FromContext(ctx).Error(err, "Failed to read the store, retrying", "until", end)
		if !time.Now().Before(end) {
			return &DamageError{Reason: fmt.Sprintf("%v, for %s", err, readPatience)}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("reading the store: %w", err)
		case <-time.After(readPause):
		}
	}
}

// strict is a visitor that ends a walk at the first thing that is wrong.
type strict struct{}

func (strict) Record(path [][]byte, key, value []byte) error { return checkFrame(path, key, value) }

func (strict) Enter([][]byte) {}

func (strict) Damaged(_ [][]byte, err error) error { return err }

// verify returns a *DamageError for a file that is not a whole store, nil for one that is, that is
// missing or that is empty.
func verify(path string) error {
	err := withFile(path, func(f io.ReaderAt, size int64) error { return boltfile.Walk(f, size, strict{}) })
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// withFile calls do with a file that is there and not empty.
func withFile(path string, do func(file io.ReaderAt, size int64) error) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("opening the store: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("looking at the store: %w", err)
	}
	if info.IsDir() {
		return fmt.Errorf("%s is a directory, and the store is a file: move the directory away", path)
	}
	if info.Size() == 0 {
		return nil
	}
	return do(f, info.Size())
}
