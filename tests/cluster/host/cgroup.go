package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const cgroupMount = "/sys/fs/cgroup"

// v1Controllers are the hierarchies of cgroup v1 in which a kubelet needs its root to be
// there already.
func v1Controllers() []string {
	return []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd", "hugetlb", "net_cls", "net_prio", "perf_event", "misc", "rdma"}
}

// MakeCgroup makes the cgroup /name for a kubelet to build its own below. Hierarchies are used as
// they are mounted, of either version; no hierarchy is ever mounted or unmounted.
func MakeCgroup(name string) error {
	unified, err := isUnified()
	if err != nil {
		return err
	}
	if unified {
		// Each level hands its controllers down (cgroups(7), cgroup.subtree_control); those the
		// machine lacks are left out.
		dir := cgroupMount
		for part := range strings.SplitSeq(name, "/") {
			for _, controller := range []string{"cpuset", "cpu", "io", "memory", "hugetlb", "pids"} {
				err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0o644)
				if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
					return fmt.Errorf("enabling the controller %s in %s: %w", controller, dir, err)
				}
			}
			dir = filepath.Join(dir, part)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("making a cgroup: %w", err)
			}
		}
		return nil
	}
	for _, controller := range v1Controllers() {
		base := filepath.Join(cgroupMount, controller)
		if _, err := os.Stat(base); err != nil {
			continue // this machine has it not
		}
		dir := base
		for part := range strings.SplitSeq(name, "/") {
			parent := dir
			dir = filepath.Join(dir, part)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("making a cgroup: %w", err)
			}
			if controller != "cpuset" {
				continue
			}
			// A new cpuset is empty, and no process may enter it before both are filled
			// (cpuset(7)).
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				value, err := os.ReadFile(filepath.Join(parent, file))
				if err != nil {
					return fmt.Errorf("reading a cpuset: %w", err)
				}
				if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
					return fmt.Errorf("filling a cpuset: %w", err)
				}
			}
		}
	}
	return nil
}

// RemoveCgroup removes the cgroup /name and all below it, in every hierarchy. No process may be
// left in them; the kernel needs a moment after the last one.
func RemoveCgroup(name string) error {
	unified, err := isUnified()
	if err != nil {
		return err
	}
	var errs []error
	if unified {
		errs = append(errs, removeBelow(filepath.Join(cgroupMount, name)))
	} else {
		for _, controller := range append(v1Controllers(), "unified") {
			errs = append(errs, removeBelow(filepath.Join(cgroupMount, controller, name)))
		}
	}
	return errors.Join(errs...)
}

func isUnified() (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(cgroupMount, &st); err != nil {
		return false, fmt.Errorf("looking at %s: %w", cgroupMount, err)
	}
	return st.Type == unix.CGROUP2_SUPER_MAGIC, nil
}

// removeBelow removes directories from the bottom up: the files in them are the kernel's and
// go by themselves.
func removeBelow(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listing a cgroup: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeBelow(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	const tries = 100
	for range tries {
		err = unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("removing the cgroup %s: %w", dir, err)
}
