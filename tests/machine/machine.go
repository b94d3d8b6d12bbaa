// Package machine makes real machines for trials: Debian with systemd as its first process, logind,
// D-Bus and containerd, as a guest of user-mode Linux whose cables end at a trial's router. What
// hosts made of namespaces can't show is shown here: orderly reboots, units, watchdogs, packages.
//
// It owns the guest's processes, which outlive the program that starts them, and its folder. The
// disk is made once and shared; a guest writes into a file of its own. It refuses no command of a
// test, all of which run as root. A Machine is used by one goroutine at a time.
package machine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/skerry-io/skerry/tests/cluster/host"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/process"
	"github.com/skerry-io/skerry/tests/uml"
)

//go:embed disk
var disk embed.FS

// Cache is where disks are kept for all runs.
const Cache = "/var/cache/skerry/machine"

// ErrNoDisk is returned where the disk can't be made, most often because Debian's packages are out
// of reach.
var ErrNoDisk = errors.New("failed to make the machine's disk")

// Disk makes the disk that guests share, unless the cache has it as this package makes it now. The
// first time takes half a minute or more: packages of Debian are fetched.
func Disk(ctx context.Context) (string, error) {
	sum := sha256.New()
	dir, err := os.MkdirTemp("", "machine-disk-")
	if err != nil {
		return "", fmt.Errorf("making a directory: %w", err)
	}
	defer os.RemoveAll(dir)
	err = fs.WalkDir(disk, "disk", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := disk.ReadFile(path)
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "%s %d\n%s", path, len(raw), raw)
		return os.WriteFile(filepath.Join(dir, filepath.Base(path)), raw, 0o755)
	})
	if err != nil {
		return "", fmt.Errorf("unpacking the files of the disk: %w", err)
	}
	image := filepath.Join(Cache, fmt.Sprintf("%x.img", sum.Sum(nil)[:8]))
	if _, err := os.Stat(image); err == nil {
		return image, nil
	}
	if err := os.MkdirAll(Cache, 0o755); err != nil {
		return "", fmt.Errorf("making the cache: %w", err)
	}
	make := exec.CommandContext(ctx, "sh", filepath.Join(dir, "make.sh"), filepath.Join(Cache, "root"), image)
	make.Env = append(os.Environ(), "DISK="+dir)
	if out, err := make.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %w: %s", ErrNoDisk, err, bytes.TrimSpace(out))
	}
	return image, nil
}

// Spec describes a machine.
type Spec struct {
	Name   string
	Number int    // among the trial's edges: of its addresses and cables
	Memory int    // MiB
	Dir    string // the machine's own: its disk's changes, its console, the folder Share
	Mark   string // distinguishes its processes from those of all other machines on this computer
	Router host.Host
}

// Machine is a guest.
type Machine struct {
	spec Spec
	disk string
	// first is its first process, which ends when the kernel does; zero for one that was never on.
	first process.Identity
}

// Possible returns nil where this computer can run machines. It makes the disk, unless the cache
// has it.
func Possible(ctx context.Context) error {
	for _, tool := range []string{kernel, "nsenter", "dpkg-deb", "mke2fs"} {
		if _, err := exec.LookPath(tool); err != nil {
			return err
		}
	}
	_, err := Disk(ctx)
	return err
}

// kernel is user-mode Linux.
const kernel = "linux.uml"

// New prepares a machine that is off.
func New(ctx context.Context, spec Spec) (*Machine, error) {
	if err := Possible(ctx); err != nil {
		return nil, err
	}
	image, err := Disk(ctx)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(spec.Dir, "share"), 0o755); err != nil {
		return nil, fmt.Errorf("making the machine's directory: %w", err)
	}
	return &Machine{spec: spec, disk: image}, lab.ConnectTaps(spec.Router, spec.Number)
}

// Open finds a machine that another program has started, by its first process.
func Open(spec Spec, first process.Identity) *Machine { return &Machine{spec: spec, first: first} }

// First is the machine's first process, as Open takes it.
func (m *Machine) First() process.Identity { return m.first }

// On reports whether the machine is on.
func (m *Machine) On() bool { return m.first.Alive() }

// AwaitOff returns nil when the machine is off, and an error when ctx ends before.
func (m *Machine) AwaitOff(ctx context.Context) error { return m.first.Wait(ctx) }

// Share is the folder that the guest has as /host.
func (m *Machine) Share() string { return filepath.Join(m.spec.Dir, "share") }

// Console is the file of the guest's boot messages.
func (m *Machine) Console() string { return filepath.Join(m.spec.Dir, "console") }

// starterScript is executed at the start, and by the kernel itself at each reboot, with all its
// open files: a tap that is still open can't be opened again.
const starterScript = `#!/bin/bash
for fd in /proc/self/fd/*; do fd=${fd##*/}; [ "$fd" -gt 2 ] && eval "exec $fd>&-" 2>/dev/null; done
exec -a "$(readlink -f "$0")" /usr/bin/linux.uml "$@"
`

// starter is the file with it.
func (m *Machine) starter() string { return filepath.Join(m.spec.Dir, "start") }

// Start switches the machine on. It returns before it has booted.
func (m *Machine) Start() error {
	path := m.starter()
	if err := os.WriteFile(path, []byte(starterScript), 0o755); err != nil {
		return fmt.Errorf("writing the machine's starter: %w", err)
	}
	console, err := os.OpenFile(m.Console(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("opening the console: %w", err)
	}
	defer console.Close()
	n := strconv.Itoa(m.spec.Number)
	cable := func(place int, name string) string {
		return fmt.Sprintf("vec%d:transport=tap,ifname=%s%s,depth=128,gro=1,mac=02:5e:00:00:%02x:%02x", place, name, n, place, m.spec.Number)
	}
	uplink, lan := lab.Uplink(m.spec.Number).Addr().String(), lab.LAN(m.spec.Number).Addr().String()
	channel := lab.Channel(m.spec.Number).Addr().String()
	network := func(address string) string { return address[:strings.LastIndexByte(address, '.')] }
	// In the router's namespace of processes: a guest that its test has left ends with the trial.
	cmd := exec.Command("nsenter", "--target", strconv.Itoa(m.spec.Router.Init.PID), "--net", "--pid", "--", path,
		fmt.Sprintf("mem=%dM", m.spec.Memory), "ubd0="+filepath.Join(m.spec.Dir, "changes")+","+m.disk, "root=/dev/ubda", "rw", "umid="+m.spec.Name, "uml_dir="+m.spec.Dir+"/",
		cable(0, "up"), cable(1, "lan"), cable(2, "channel"), "con=null", "con0=null,fd:1", "quiet", "systemd.unified_cgroup_hierarchy=1",
		"machine.name="+m.spec.Name, m.marked(), "machine.cloud="+lab.Cloud().String(), "machine.uplink="+network(uplink), "machine.lan="+lan, "machine.channel="+network(channel), "machine.share="+m.Share())
	// The guest's memory is a file there: a disk would write its pages all the time.
	cmd.Env = append(os.Environ(), "HOME="+m.spec.Dir, "TMPDIR=/dev/shm")
	cmd.Stdout, cmd.Stderr = console, console
	if err := uml.Start(cmd, m.spec.Dir); err != nil {
		return fmt.Errorf("starting the machine: %w", err)
	}
	m.first, err = process.Find(cmd.Process.Pid)
	go func() { _ = cmd.Wait() }() // a kernel's exit code means no failure; it outlives us
	return err
}

// marked is an argument that all processes of the machine have. Its folder would not do: checkouts
// that are bound to one path have machines in the same one.
func (m *Machine) marked() string { return "machine.mark=" + m.spec.Mark }

// Processes describes the machine's processes as this computer sees them, for a machine that does
// not answer: state, processor time, system call and where they wait in the kernel (proc(5)).
func (m *Machine) Processes() string {
	all, err := process.Select(func(pid int) bool { return slices.Contains(process.Cmdline(pid), m.marked()) })
	if err != nil {
		return err.Error()
	}
	var out strings.Builder
	for _, id := range all[:min(len(all), 8)] { // the kernel, its helpers, and the first of the guest's own
		file := func(name string) string {
			raw, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(id.PID), name)) // one that has ended has none
			return strings.TrimSpace(string(raw))
		}
		stat := strings.Fields(file("stat"))
		if len(stat) > 14 {
			fmt.Fprintf(&out, "%d state %s, %s+%s ticks, waits in %s, system call %s\n", id.PID, stat[2], stat[13], stat[14], file("wchan"), file("syscall"))
		}
	}
	return fmt.Sprintf("%d processes\n%s", len(all), &out)
}

// endTimeout bounds the end of killed processes: one that waits for a disk ends later.
const endTimeout = 30 * time.Second

// Cut ends the machine as a power cut does: the kernel's process and all of the guest's, which the
// kernel leaves behind where it is killed.
func (m *Machine) Cut(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	for {
		left, err := process.Select(func(pid int) bool { return slices.Contains(process.Cmdline(pid), m.marked()) })
		if err != nil || len(left) == 0 {
			return err
		}
		for _, id := range left {
			if err := id.Signal(syscall.SIGKILL); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d killed processes of %s have not ended: %w", len(left), m.spec.Name, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// ErrSilent is returned where no command reaches the guest, or where it ends first.
var ErrSilent = errors.New("the machine does not answer")

// Run runs a script of bash in the guest, as root, and returns its output. It reaches the guest
// through any cut.
func (m *Machine) Run(ctx context.Context, script string) (string, error) {
	var out strings.Builder
	code, err := m.Stream(ctx, script, &out)
	if err == nil && code != 0 {
		err = fmt.Errorf("%s: exit code %d: %s", script, code, strings.TrimSpace(out.String()))
	}
	return out.String(), err
}

// Stream is Run for output that is wanted while the script runs. It returns the script's exit code.
func (m *Machine) Stream(ctx context.Context, script string, out io.Writer) (code int, err error) {
	dialCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := m.spec.Router.Dial(dialCtx, "tcp", net.JoinHostPort(lab.Channel(m.spec.Number).Addr().String(), "2222"))
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrSilent, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := fmt.Fprintf(conn, "(\n%s\n) </dev/null 2>&1; echo \"exit=$?\"; exit\n", script); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrSilent, err)
	}
	last, err := copyAllBut(out, conn, len("exit=255\n"))
	i := bytes.LastIndex(last, []byte("exit="))
	if i < 0 {
		_, written := out.Write(last)
		return 0, errors.Join(fmt.Errorf("%w: the connection ended first", ErrSilent), err, written)
	}
	if _, err := out.Write(last[:i]); err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(last[i+len("exit="):])))
}

// copyAllBut copies until the end of in, except for so many of the last bytes, which it returns.
func copyAllBut(out io.Writer, in io.Reader, keep int) (last []byte, err error) {
	buffer := make([]byte, 4096)
	for {
		n, err := in.Read(buffer)
		last = append(last, buffer[:n]...)
		if more := len(last) - keep; more > 0 {
			if _, err := out.Write(last[:more]); err != nil {
				return nil, err
			}
			last = last[more:]
		}
		if errors.Is(err, io.EOF) {
			return last, nil
		}
		if err != nil {
			return last, err
		}
	}
}

// BootID names the guest's boot.
func (m *Machine) BootID(ctx context.Context) (string, error) {
	out, err := m.Run(ctx, "cat /proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(out), err
}

// Cgroups defines two functions of shell: cgroups prints the cgroup of each process of a pod, count
// how many there are. The program of every image here is /app, that of the sandboxes too. They
// start no process, which would cost a guest more than all else.
const Cgroups = `cgroups() {
	for p in /proc/[0-9]*; do
		name=; read -r name 2>/dev/null <$p/comm
		if [ "$name" = app ] && read -r cgroup 2>/dev/null <$p/cgroup; then echo "$cgroup"; fi
	done
}
count() { local all; mapfile -t all < <(cgroups); echo ${#all[@]}; }
`
