package store

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/skerry-io/skerry/edge/internal/core/store/boltfile"
)

var (
	// ErrLocked is returned by Open for a store that another process has open.
	ErrLocked = errors.New("the store is open in another process")
	// ErrKey is returned by Open when the store's key is missing, can't be read, or is not the one
	// that the store was sealed with.
	ErrKey = errors.New("the store's key does not fit")
	// ErrSchema is returned by Open for a store that a newer edgecore has written.
	ErrSchema = errors.New("the store was written by a newer edgecore")
	// ErrDamaged is returned by everything once the file has turned out to be damaged while in use.
	// The next Open sets it aside.
	ErrDamaged = boltfile.ErrDamaged
	// ErrFull is returned by a write that found no room. Later ones may find it again.
	ErrFull = errors.New("no room left on the store's disk")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("the store is closed")
)

// DamageError describes the damage of the file. errors.Is finds ErrDamaged in it.
type DamageError = boltfile.DamageError

func noRoom(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}

func recovered(err *error) {
	if p := recover(); p != nil {
		*err = &DamageError{Reason: fmt.Sprint(p)}
	}
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("opening the store's directory: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("syncing the store's directory: %w", err)
	}
	return nil
}
