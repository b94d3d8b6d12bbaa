package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// DiskFull is the condition of a Node whose edgecore has no space for its state.
const DiskFull corev1.NodeConditionType = "SkerryDataDiskFull"

// leastFree is the required free space on the disk of the data directory, in bytes: the store's
// file grows by as much at a time.
const leastFree = 1 << 20

// DiskStatus reports the disk space for edgecore's state.
type DiskStatus struct {
	Path    string `json:"path"`
	Free    uint64 `json:"freeBytes"`
	Problem string `json:"problem,omitempty"` // why state can't be stored
}

// storeFile is the name of the store's file in the data directory.
const storeFile = "store.db"

// Disk is the disk of the data directory.
type Disk struct {
	path string
	full func() bool // the last write to the store found no room
	// try makes a small write to the store.
	try func(ctx context.Context) error
}

// NewDisk returns the disk that the data directory at path is on. s keeps its file there; nil: only
// the free space counts.
func NewDisk(path string, s *store.Store) Disk {
	if s == nil {
		return Disk{path: path, full: func() bool { return false }}
	}
	return Disk{path, func() bool { return s.Stats().Full }, func(ctx context.Context) error {
		return s.Update(ctx, func(tx *store.Tx) error {
			return tx.SetState("disk", "tried", strconv.AppendInt(nil, time.Now().Unix(), 10))
		})
	}}
}

// refresh makes the store retry if its last write found no space and there is space now: an idle
// device may not write for long, and would be reported as full until then.
func (d Disk) refresh(ctx context.Context) {
	var fs unix.Statfs_t
	if d.full() && unix.Statfs(d.path, &fs) == nil && free(&fs) >= leastFree {
		_ = d.try(ctx) // full reports its result
	}
}

func free(fs *unix.Statfs_t) uint64 { return fs.Bavail * uint64(max(fs.Bsize, 0)) }

// Status reads the state of the disk (statfs(2)).
func (d Disk) Status() DiskStatus {
	s := DiskStatus{Path: d.path}
	var fs unix.Statfs_t
	if err := unix.Statfs(d.path, &fs); err != nil {
		s.Problem = fmt.Sprintf("the disk of %s can't be looked at: %v", d.path, err)
		return s
	}
	s.Free = free(&fs)
	const readOnly = "the disk of %s is read-only: writers are refused, updates of the cloud are not stored, and edgecore can't start again: look for errors of the disk (dmesg), then "
	if fs.Flags&unix.ST_RDONLY != 0 {
		s.Problem = fmt.Sprintf(readOnly+"mount -o remount,rw", d.path)
		return s
	}
	if err := writable(filepath.Join(d.path, storeFile)); err != nil {
		s.Problem = fmt.Sprintf(readOnly+"reboot, or unmount it and run fsck: %v", d.path, err)
		return s
	}
	if s.Free < leastFree || d.full() {
		s.Problem = fmt.Sprintf("the disk of %s is full: %d KiB are free", d.path, s.Free>>10)
	}
	return s
}

// writable opens a file for writing, without a write. It returns the refusal of a file system that
// met an error, which statfs(2) does not show on every kernel: ext4 of Linux 6.18 has no ST_RDONLY
// then.
func writable(file string) error {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	switch {
	case err == nil:
		return f.Close()
	case errors.Is(err, unix.EROFS), errors.Is(err, unix.EIO), errors.Is(err, unix.EUCLEAN), errors.Is(err, unix.ESHUTDOWN):
		return err
	}
	return nil // it is not there, or something else is, which the store reports
}

// Ready is a check of /readyz; its error is the reason why state can't be stored.
func (d Disk) Ready() error {
	if p := d.Status().Problem; p != "" {
		return errors.New(p)
	}
	return nil
}

// DiskModule sets the condition DiskFull. On a store without one free page that waits for room like
// every other write.
type DiskModule struct{ poller }

// NewDiskModule returns the module for the Node of that name; client is of the edge API.
func NewDiskModule(disk Disk, node string, client *rest.Config) *DiskModule {
	good := corev1.NodeCondition{Type: DiskFull, Reason: "HasRoom", Message: "edgecore has room for what it keeps"}
	first := "" // of this problem: a later message only counts other bytes, which is no reason to write
	return &DiskModule{poller{diskPoll, func(ctx context.Context) (reason, message string) {
		disk.refresh(ctx)
		if message = disk.Status().Problem; message == "" || first == "" {
			first = message
		}
		return "NoRoom", first
	}, good, node, client}}
}

// Name implements beehive.Module.
func (*DiskModule) Name() message.Name { return "disk" }

// diskPoll is the interval of disk checks: statfs(2) costs microseconds and does not write.
const diskPoll = 10 * time.Second

// Run implements beehive.Module.
func (m *DiskModule) Run(ctx context.Context, port *beehive.Port) error {
	return m.run(ctx, port, nil)
}
