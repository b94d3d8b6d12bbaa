package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
)

// DataDiskFull is the condition of a Node whose edgecore has no room for what it must keep.
const DataDiskFull corev1.NodeConditionType = "SkerryDataDiskFull"

// leastFree is what must be free on the disk of the data directory, in bytes: the store's file grows by
// as much at a time.
const leastFree = 1 << 20

// DiskStatus is the room for what edgecore keeps.
type DiskStatus struct {
	Path    string `json:"path"`
	Free    uint64 `json:"freeBytes"`
	Problem string `json:"problem,omitempty"` // why something can't be kept
}

// disk is the disk of the data directory.
type disk struct {
	path string
	full func() bool // the last write to the store found no room
}

// status looks at the disk (statfs(2)).
func (d disk) status() DiskStatus {
	s := DiskStatus{Path: d.path}
	var fs unix.Statfs_t
	if err := unix.Statfs(d.path, &fs); err != nil {
		s.Problem = fmt.Sprintf("the disk of %s can't be looked at: %v", d.path, err)
		return s
	}
	s.Free = fs.Bavail * uint64(max(fs.Bsize, 0))
	if s.Free < leastFree || d.full() {
		s.Problem = fmt.Sprintf("the disk of %s is full: %d KiB are free", d.path, s.Free>>10)
	}
	return s
}

// ready is a check of /readyz.
func (d disk) ready() error {
	if p := d.status().Problem; p != "" {
		return errors.New(p)
	}
	return nil
}

// diskModule tells the cluster, by a condition of the Node, that the disk is full. On a store without
// one free page that waits for room like every other write.
type diskModule struct {
	disk   disk
	node   string
	client *rest.Config
}

func (*diskModule) Name() message.Name { return "disk" }

// diskPoll is how often the disk is looked at: statfs(2) costs microseconds and writes nothing.
const diskPoll = 10 * time.Second

// Run looks until ctx ends. A condition is written when it changes, the first time only where it is bad.
func (m *diskModule) Run(ctx context.Context, port *beehive.Port) error {
	client, err := kubernetes.NewForConfig(m.client)
	if err != nil {
		return fmt.Errorf("making the client for the Node's condition: %w", err)
	}
	port.Ready()
	tick := time.NewTicker(diskPoll)
	defer tick.Stop()
	said, known := "", false
	for {
		problem := m.disk.status().Problem
		if (problem == "") != (said == "") || !known {
			if known = m.say(ctx, client, problem) == nil; known {
				said = problem
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// say sets the Node's condition, where it differs.
func (m *diskModule) say(ctx context.Context, client kubernetes.Interface, problem string) error {
	want := corev1.NodeCondition{Type: DataDiskFull, Status: corev1.ConditionFalse, Reason: "HasRoom", Message: "edgecore has room for what it keeps"}
	if problem != "" {
		want.Status, want.Reason, want.Message = corev1.ConditionTrue, "NoRoom", problem
	}
	return setCondition(ctx, client, m.node, want)
}
