package keepalived

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// start starts keepalived. "-P" is VRRP alone: no health checker, no IPVS.
func (d *Daemon) start(log klog.Logger) (*process, error) {
	d.killOrphans()
	d.removePIDFiles() // "daemon is already running" otherwise
	cmd := exec.Command(d.cfg.Program, "--dont-fork", "--vrrp", "--log-console", "--use-file", d.path(fileConfig), "--pid", d.path(filePID), "--vrrp_pid", d.path(fileVRRP))
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	// A process group of its own: a signal for edgecore from a terminal is not for it.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	// Its words go to a file, not to a pipe: it must not die of SIGPIPE when edgecore does.
	words, err := d.openLog()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = words, words
	err = startOnTime(cmd)
	words.Close()
	if err != nil {
		return nil, fmt.Errorf("starting keepalived: %w", err)
	}
	p := &process{pid: cmd.Process.Pid, since: time.Now(), done: make(chan struct{})}
	if p.fd, err = unix.PidfdOpen(p.pid, 0); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, fmt.Errorf("opening keepalived's pidfd: %w", err)
	}
	go func() {
		defer close(p.done)
		if err := cmd.Wait(); err != nil {
			log.Info("keepalived exited", "err", err, "log", d.tail())
		}
	}()
	return p, nil
}

// timerSlack is the kernel's own (prctl(2), PR_SET_TIMERSLACK), in nanoseconds.
const timerSlack = 50_000

// startOnTime starts a command whose timers the kernel may delay no more than those of other
// programs. A child has the timer slack of the thread that forks, and edgecore's unit gives it a
// large one: a backup would take adverts that come late for missing ones.
func startOnTime(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("reading the timer slack: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, timerSlack, 0, 0, 0); err != nil {
		return fmt.Errorf("setting the timer slack: %w", err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(own), 0, 0, 0) }()
	return cmd.Start()
}

// fileLog is keepalived's log of its present run; logBound is how large it may be at a start.
const (
	fileLog  = "keepalived.log"
	logBound = 256 << 10
)

// openLog opens the log for appending. It is emptied at each start that finds it above its bound; a
// running keepalived logs little.
func (d *Daemon) openLog() (*os.File, error) {
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if info, err := os.Stat(d.path(fileLog)); err == nil && info.Size() > logBound {
		flags |= os.O_TRUNC
	}
	f, err := os.OpenFile(d.path(fileLog), flags, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening keepalived's log: %w", err)
	}
	return f, nil
}

// tail is the end of the log.
func (d *Daemon) tail() string {
	f, err := os.Open(d.path(fileLog))
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	const most = 600
	if info, err := f.Stat(); err == nil && info.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd)
	}
	b, _ := io.ReadAll(io.LimitReader(f, most))
	return string(b)
}

// adopt finds the keepalived of an earlier run, by its pid file; the pid may be another process's
// by now, so its command line and its network must be right.
func (d *Daemon) adopt() (*process, error) {
	pid := readPID(d.path(filePID))
	if pid == 0 || !d.isOurs(pid) {
		return nil, nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("opening keepalived's pidfd: %w", err)
	}
	if !d.isOurs(pid) { // it ended in between, and the number is another's
		unix.Close(fd)
		return nil, nil
	}
	p := &process{pid: pid, fd: fd, since: time.Now(), done: make(chan struct{})}
	go func() {
		defer close(p.done)
		// Readable when the process has ended.
		for {
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			if !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}()
	return p, nil
}

// isOurs reports whether a process is a keepalived with our configuration, in our network
// namespace.
func (d *Daemon) isOurs(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !slices.Contains(strings.Split(string(raw), "\x00"), d.path(fileConfig)) {
		return false
	}
	if exe := strings.SplitN(string(raw), "\x00", 2)[0]; filepath.Base(exe) != filepath.Base(d.cfg.Program) {
		return false
	}
	var theirs, own unix.Stat_t
	return unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &theirs) == nil && unix.Stat("/proc/thread-self/ns/net", &own) == nil && theirs.Ino == own.Ino
}

func readPID(path string) int {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil || pid <= 1 {
		return 0
	}
	return pid
}

// killOrphans ends processes of a keepalived whose parent is gone: it would hold addresses that no
// process manages.
func (d *Daemon) killOrphans() {
	for _, name := range []string{filePID, fileVRRP} {
		if pid := readPID(d.path(name)); pid != 0 && d.isOurs(pid) {
			if fd, err := unix.PidfdOpen(pid, 0); err == nil {
				if d.isOurs(pid) {
					_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
				}
				unix.Close(fd)
			}
		}
	}
}

func (d *Daemon) removePIDFiles() {
	for _, name := range []string{filePID, fileVRRP} {
		_ = os.Remove(d.path(name))
	}
}

func (p *process) signal(s unix.Signal) error {
	if err := unix.PidfdSendSignal(p.fd, s, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signalling keepalived: %w", err)
	}
	return nil
}

// reload makes it read its configuration. Unchanged instances go on.
func (p *process) reload() error { return p.signal(unix.SIGHUP) }

// stop ends it: it notifies the others, so that they take over at once, and removes its addresses.
func (p *process) stop(log klog.Logger) error {
	if err := p.signal(unix.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-time.After(grace):
		log.Error(nil, "Killing keepalived, which does not end, and removing its addresses", "pid", p.pid)
		if err := p.signal(unix.SIGKILL); err != nil {
			return err
		}
		<-p.done
	}
	unix.Close(p.fd)
	return nil
}

// openFIFO makes the FIFO that keepalived reports its transitions through. It is opened for writing
// too, so that it never ends; a FIFO without a reader does no harm.
func (d *Daemon) openFIFO() (*os.File, error) {
	path := d.path(fileFIFO)
	if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("making keepalived's FIFO: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("opening keepalived's FIFO: %w", err)
	}
	return f, nil
}

func (d *Daemon) readFIFO(log klog.Logger, f *os.File) {
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, state, ok := parseNotice(lines.Text())
		if !ok {
			continue
		}
		log.V(3).Info("Election changed", "instance", name, "state", state)
		d.statesMu.Lock()
		if _, known := d.names[name]; known {
			d.states[name] = state
		}
		d.statesMu.Unlock()
		poke(d.changed)
	}
}

// parseNotice reads a line such as: INSTANCE "vip_10.0.0.1" MASTER 200
func parseNotice(line string) (name string, state State, ok bool) {
	rest, ok := strings.CutPrefix(line, `INSTANCE "`)
	if !ok {
		return "", "", false
	}
	name, rest, ok = strings.Cut(rest, `" `)
	if !ok {
		return "", "", false
	}
	word, _, _ := strings.Cut(rest, " ")
	switch s := State(word); s {
	case Master, Backup, Fault, Stop:
		return name, s, true
	}
	return "", "", false
}
