// Package host makes machines out of namespaces: each has its own processes, mounts, network, name
// and, where asked for, its own /etc, /run, /var/lib and /var/log, so that programs on it use the
// paths they would use on a real device.
//
// It owns the first process of each host, which only keeps the namespaces and reaps orphans. When
// that one ends, the kernel ends every other process of the host, and with the last of them go all
// its mounts and interfaces: a reboot is just that, and so is the cleaning after a crash. The
// machine's own file system shows of a host only the directories that were given to it. The
// functions may be called from any goroutine.
package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/tests/cluster/process"
)

// Spec describes a host.
type Spec struct {
	// Hostname is the host's own name.
	Hostname string
	// Init is the program that keeps the namespaces, and Mark an argument of it that names this
	// host among all processes of the machine.
	Init, Mark string
	// Dir, when set, is where the host's own files are kept over reboots: etc (the files that
	// differ from the machine's), lib (/var/lib), log (/var/log).
	Dir string
}

// Host is a host that runs, or ran. It can be stored as JSON.
type Host struct {
	Init process.Identity `json:"init"`
}

// Directories below Spec.Dir.
const (
	dirEtc  = "etc"
	dirWork = "etc.work"
	dirLib  = "lib"
	dirLog  = "log"
)

// Etc, Lib and Log are where a host's /etc (its differences), /var/lib and /var/log are on
// the machine.
func Etc(dir string) string { return filepath.Join(dir, dirEtc) }
func Lib(dir string) string { return filepath.Join(dir, dirLib) }
func Log(dir string) string { return filepath.Join(dir, dirLog) }

// Boot starts a host. Its loopback interface is up, forwarding is on, and there is no
// other interface.
func Boot(ctx context.Context, spec Spec) (_ Host, err error) {
	if spec.Dir != "" {
		for _, d := range []string{dirEtc, dirWork, dirLib, dirLog} {
			if err := os.MkdirAll(filepath.Join(spec.Dir, d), 0o755); err != nil {
				return Host{}, fmt.Errorf("making the directories of host %s: %w", spec.Hostname, err)
			}
		}
	}
	const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC
	first, err := process.Start(process.Spec{Path: spec.Init, Args: []string{spec.Mark}, Flags: namespaces})
	if err != nil {
		return Host{}, fmt.Errorf("booting host %s: %w", spec.Hostname, err)
	}
	h := Host{Init: first.Identity}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Halt(context.WithoutCancel(ctx)))
		}
	}()
	for _, step := range []func() error{
		func() error { return h.Do(func() error { return isolate(spec) }) },
		h.mountProc,
		func() error { return h.Do(func() error { return furnish(spec) }) },
	} {
		if err := step(); err != nil {
			return Host{}, fmt.Errorf("furnishing host %s: %w", spec.Hostname, err)
		}
	}
	links, err := h.Netlink()
	if err != nil {
		return Host{}, err
	}
	defer links.Close()
	lo, err := links.LinkByName("lo")
	if err != nil {
		return Host{}, fmt.Errorf("finding the loopback interface of host %s: %w", spec.Hostname, err)
	}
	if err := links.LinkSetUp(lo); err != nil {
		return Host{}, fmt.Errorf("setting the loopback interface of host %s up: %w", spec.Hostname, err)
	}
	return h, nil
}

// isolate cuts the tie between the machine's mounts and the host's; it runs on the host.
func isolate(spec Spec) error {
	if err := unix.Sethostname([]byte(spec.Hostname)); err != nil {
		return fmt.Errorf("setting the name: %w", err)
	}
	return mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
}

// mountProc makes /proc show the host's processes. Its process namespace is that of the process
// that mounts it, which a thread of ours can't be: only a child is.
func (h Host) mountProc() error {
	var out bytes.Buffer
	child, err := h.Start(process.Spec{Path: "mount", Args: []string{"-n", "-t", "proc", "-o", "nosuid,nodev,noexec", "proc", "/proc"}, Stdout: &out, Stderr: &out})
	if err != nil {
		return err
	}
	<-child.Done()
	if err := child.Err(); err != nil {
		return fmt.Errorf("mounting /proc: %w: %s", err, bytes.TrimSpace(out.Bytes()))
	}
	return nil
}

// furnish gives the host files of its own; it runs on the host.
func furnish(spec Spec) error {
	if spec.Dir != "" {
		if err := mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
			return err
		}
		overlay := fmt.Sprintf("lowerdir=/etc,upperdir=%s,workdir=%s", filepath.Join(spec.Dir, dirEtc), filepath.Join(spec.Dir, dirWork))
		if err := mount("overlay", "/etc", "overlay", 0, overlay); err != nil {
			return err
		}
		// Last, since the host's files may be below the machine's /var.
		for _, bind := range [][2]string{{filepath.Join(spec.Dir, dirLib), "/var/lib"}, {filepath.Join(spec.Dir, dirLog), "/var/log"}} {
			if err := mount(bind[0], bind[1], "", unix.MS_BIND, ""); err != nil {
				return err
			}
		}
	}
	if err := newBoot(); err != nil {
		return err
	}
	// Shared at the end and not before: a bind mount would else show at its source too. A pod's
	// mount namespace follows its host's (mount_namespaces(7)).
	if err := mount("none", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return err
	}
	for _, family := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/net/"+family, []byte("1"), 0o644); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("switching forwarding on: %w", err)
		}
	}
	return nil
}

// bootFile is a boot's own identifier (proc(5)).
const bootFile = "/proc/sys/kernel/random/boot_id"

// newBoot gives this boot of the host an identifier of its own: the kernel has one for all of them.
// Its file vanishes with the host.
func newBoot() error {
	id, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		return fmt.Errorf("making an identifier for the boot: %w", err)
	}
	dir, err := os.MkdirTemp("", "boot")
	if err != nil {
		return fmt.Errorf("keeping the identifier of the boot: %w", err)
	}
	defer os.Remove(dir)
	if err := mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=4k,mode=755"); err != nil {
		return err
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }() // the bind mount stays
	file := filepath.Join(dir, "boot_id")
	if err := os.WriteFile(file, id, 0o444); err != nil {
		return fmt.Errorf("keeping the identifier of the boot: %w", err)
	}
	return mount(file, bootFile, "", unix.MS_BIND, "")
}

func mount(source, target, kind string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mounting %s: %w", target, err)
	}
	return nil
}

// Running reports whether the host is up.
func (h Host) Running() bool { return h.Init.Alive() }

// Halt ends the host and everything on it, at once, as a power cut would, and returns when
// it is gone.
func (h Host) Halt(ctx context.Context) error { return h.Init.Kill(ctx) }

// Netlink talks to the host's network. The caller closes it.
func (h Host) Netlink() (*netlink.Handle, error) {
	ns, err := netns.GetFromPid(h.Init.PID)
	if err != nil {
		return nil, fmt.Errorf("opening the host's network: %w", err)
	}
	defer ns.Close()
	handle, err := netlink.NewHandleAt(ns)
	if err != nil {
		return nil, fmt.Errorf("opening the host's network: %w", err)
	}
	return handle, nil
}

// Do runs f on a thread that is in the host's namespaces. f must not start goroutines that need
// them; programs it executes are on the host.
func (h Host) Do(f func() error) error {
	result := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine and takes the namespaces with it.
		runtime.LockOSThread()
		if err := h.enter(); err != nil {
			result <- err
			return
		}
		result <- f()
	}()
	return <-result
}

// enter moves the calling thread to the host.
func (h Host) enter() error {
	if !h.Running() {
		return errors.New("the host is not running")
	}
	// Opened before the first is entered: afterwards /proc is another.
	type namespace struct {
		name string
		flag int
	}
	all := []namespace{{"ipc", unix.CLONE_NEWIPC}, {"uts", unix.CLONE_NEWUTS}, {"net", unix.CLONE_NEWNET}, {"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS}}
	files := make([]*os.File, len(all))
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for i, ns := range all {
		var err error
		if files[i], err = os.Open(fmt.Sprintf("/proc/%d/ns/%s", h.Init.PID, ns.name)); err != nil {
			return fmt.Errorf("opening the host's namespaces: %w", err)
		}
	}
	// A thread that shares its root and working directory with others may not change its mount
	// namespace (setns(2)).
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("leaving the process' file system context: %w", err)
	}
	for i, ns := range all {
		if err := unix.Setns(int(files[i].Fd()), ns.flag); err != nil {
			return fmt.Errorf("entering the host's %s namespace: %w", ns.name, err)
		}
	}
	return nil
}

// Start starts a program on the host.
func (h Host) Start(spec process.Spec) (*process.Started, error) {
	inner := spec.Enter
	spec.Enter = func() error {
		if err := h.enter(); err != nil {
			return err
		}
		if inner != nil {
			return inner()
		}
		return nil
	}
	return process.Start(spec)
}

// Root is the host's file system as a path of the machine.
func (h Host) Root() string { return fmt.Sprintf("/proc/%d/root", h.Init.PID) }

// Marked finds the first processes of all hosts whose Mark begins with prefix.
func Marked(init, prefix string) ([]Host, error) {
	ids, err := process.Select(func(pid int) bool {
		args := process.Cmdline(pid)
		return len(args) == 2 && args[0] == init && len(args[1]) >= len(prefix) && args[1][:len(prefix)] == prefix
	})
	if err != nil {
		return nil, err
	}
	hosts := make([]Host, 0, len(ids))
	for _, id := range ids {
		hosts = append(hosts, Host{Init: id})
	}
	return hosts, nil
}

// RemoveTree removes a directory and everything in it, after unmounting the machine's own mounts
// there.
func RemoveTree(dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	points, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	for _, point := range slices.Backward(points) {
		if err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("unmounting %s: %w", point, err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("removing %s: %w", dir, err)
	}
	return nil
}

// Dial connects to an address as the host sees it.
func (h Host) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := h.Do(func() (err error) {
		// An address without a name is dialled on the calling thread.
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}
