// Package atomicfile replaces a file as a whole or not at all, power cuts included.
//
// It owns the temporary file in the same directory, and the order of flushes. It is stateless; of
// two writers of one file at once the later one wins.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Write makes data the content of path, with the permissions of mode. Readers see the old file or
// the new one; where it returns an error, the old one, and ENOSPC leaves no temporary file behind.
// The directory is flushed too: a rename is not on the disk before (fsync(2)).
func Write(path string, data []byte, mode fs.FileMode) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // gone already once it was renamed
			err = fmt.Errorf("writing %s: %w", path, err)
		}
	}()
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
