package edged

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

const (
	// reserveSize is the space that the kubelet gets on a disk that other programs have filled to
	// the last byte: enough for checkpoints, which have a few kilobytes each.
	reserveSize = 256 << 10
	// reserveAbove is how many bytes must be available for the reserve to be made again.
	reserveAbove    = 4 * reserveSize
	reserveInterval = 5 * time.Second
)

// reserve is a file on the kubelet's disk that is deleted when the disk is full. A kubelet ends a
// pod only after it has written a checkpoint (Manager.unprepareResources in
// pkg/kubelet/cm/dra/manager.go), whether or not the pod has devices: without room for that no
// eviction would end, and the disk would stay full.
type reserve struct {
	path string
}

func newReserve(dir string) *reserve { return &reserve{filepath.Join(dir, ".edged-reserve")} }

// run adjusts the reserve until ctx ends.
func (r *reserve) run(ctx context.Context) {
	tick := time.NewTicker(reserveInterval)
	defer tick.Stop()
	for {
		r.adjust(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// adjust deletes the reserve if the disk is full, and makes it if there is room. Before the first
// kubelet there is no directory.
func (r *reserve) adjust(ctx context.Context) {
	_, available, err := diskSpace(filepath.Dir(r.path))
	if err != nil {
		return
	}
	_, err = os.Stat(r.path)
	switch has := err == nil; {
	case has && available < reserveSize:
		if err := os.Remove(r.path); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to give the kubelet its reserve on a full disk: make room by hand")
			return
		}
		klog.FromContext(ctx).Info("Gave the kubelet its reserve on a full disk", "bytes", reserveSize)
	case errors.Is(err, fs.ErrNotExist) && available >= reserveAbove:
		if err := r.make(); err != nil {
			klog.FromContext(ctx).V(2).Info("Failed to reserve room for the kubelet, retrying", "err", err)
		}
	}
}

// make fills the file with random bytes: a file system that compresses, or has holes, would reserve
// nothing for zeros.
func (r *reserve) make() error {
	filling := make([]byte, reserveSize)
	if _, err := rand.Read(filling); err != nil {
		return err
	}
	if err := os.WriteFile(r.path, filling, 0o600); err != nil {
		return errors.Join(fmt.Errorf("writing the reserve: %w", err), os.Remove(r.path))
	}
	return nil
}

// diskSpace returns the size of a directory's file system, and how much of it is available to
// unprivileged programs, in bytes (statvfs(3)).
func diskSpace(dir string) (size, available uint64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, 0, err
	}
	return s.Blocks * uint64(s.Frsize), s.Bavail * uint64(s.Frsize), nil
}
