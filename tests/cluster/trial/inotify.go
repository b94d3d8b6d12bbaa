package trial

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// The programs' use of the machine's inotify instances (inotify(7)), counted in /proc/PID/fd as
// anon_inode:inotify, with one or two to spare.
const (
	inotifyPlane = 12 // kubeplane: 11
	inotifyNode  = 8  // edgecore: 6, containerd: 1
	inotifyProxy = 2  // kube-proxy, with InCluster
)

// inotifyNeed is how many instances the programs take that do not run yet.
func (t *Trial) inotifyNeed(o Options) int {
	running := func(host, program string) bool {
		return t.state != nil && t.machine(host).Processes[program].Alive()
	}
	need := 0
	if !running(Cloud, "kubeplane") {
		need += inotifyPlane
	}
	for _, n := range o.Nodes() {
		if !running(n.Name, "containerd") {
			need += inotifyNode
		}
		if o.InCluster && n.Plain && !running(n.Name, "kube-proxy") {
			need += inotifyProxy
		}
	}
	return need
}

// inotifyRoom returns an error when the kernel would refuse one of so many instances: a kubelet
// would end at its start with "inotify_init: too many open files". They are made and given back;
// other programs on the machine may take them in between.
func inotifyRoom(need int) error {
	files := make([]int, 0, need)
	defer func() {
		for _, fd := range files {
			_ = unix.Close(fd) // it is empty
		}
	}()
	for range need {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if errors.Is(err, unix.EMFILE) {
			return fmt.Errorf("this trial needs %d inotify instances and %d are free, of %s that this machine gives a user (other trials have some): "+
				"'sysctl -w fs.inotify.max_user_instances=1024' gives more", need, len(files), inotifyLimit())
		}
		if err != nil {
			return fmt.Errorf("asking for an inotify instance: %w", err)
		}
		files = append(files, fd)
	}
	return nil
}

func inotifyLimit() string {
	raw, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	if err != nil {
		return "those"
	}
	return strings.TrimSpace(string(raw))
}
