package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// makeRoomForKubelets raises the machine's limit of inotify instances: each kubelet and containerd
// takes some, of which Linux gives a user 128 (inotify(7)), and a dozen nodes of trials side by
// side need more. giveBack restores the old value.
func makeRoomForKubelets() (giveBack func(), err error) {
	const limit, enough = "/proc/sys/fs/inotify/max_user_instances", 1024
	raw, err := os.ReadFile(limit)
	if errors.Is(err, os.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the limit of inotify instances: %w", err)
	}
	had, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", limit, err)
	}
	// A machine that lets nobody write it keeps its value.
	if had >= enough || os.WriteFile(limit, []byte(strconv.Itoa(enough)), 0) != nil {
		return func() {}, nil
	}
	return func() { _ = os.WriteFile(limit, raw, 0) }, nil
}

// A machine is the time that all processors of this machine have spent since it was started.
type machine struct {
	User   seconds `json:"user"`
	Kernel seconds `json:"kernel"`
	Idle   seconds `json:"idle"`   // of the disk's waiting too
	Stolen seconds `json:"stolen"` // by the host, for other guests
}

func (m machine) since(b machine) machine {
	return machine{m.User - b.User, m.Kernel - b.Kernel, m.Idle - b.Idle, m.Stolen - b.Stolen}
}

// readMachine reads proc_stat(5). Where it can't, there are no figures.
func readMachine() machine {
	const hertz = 100 // USER_HZ, on every architecture of ours
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return machine{}
	}
	fields := strings.Fields(strings.SplitN(string(raw), "\n", 2)[0])
	if len(fields) < 9 {
		return machine{}
	}
	sum := func(indices ...int) (s seconds) {
		for _, i := range indices {
			n, err := strconv.ParseUint(fields[i], 10, 64)
			if err == nil {
				s += seconds(n) / hertz
			}
		}
		return s
	}
	// user and nice; system, irq and softirq; idle and iowait; steal
	return machine{sum(1, 2), sum(3, 6, 7), sum(4, 5), sum(8)}
}
