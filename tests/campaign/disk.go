package campaign

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// diskSize is how large the disk of an edge is where disks are filled.
const diskSize = "size=48m"

// mountDisk makes a directory a disk of its own, until unmountDisk.
func mountDisk(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the directory of a disk: %w", err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, diskSize+",mode=700"); err != nil {
		return fmt.Errorf("mounting a disk, for the fault %q: %w", Full, err)
	}
	return nil
}

// unmountDisk may be called with "" too.
func unmountDisk(dir string) {
	if dir != "" {
		_ = unix.Unmount(dir, unix.MNT_DETACH)
	}
}
