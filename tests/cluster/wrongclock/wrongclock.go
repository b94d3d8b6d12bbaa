// Package wrongclock lets a program see another time of day than the machine's, as on a device
// without a battery that boots in 1970.
//
// A network namespace has no clock of its own, and time namespaces have all clocks but this one
// (time_namespaces(7)). So the program's reads of CLOCK_REALTIME are answered by us: a seccomp
// filter hands them over (seccomp_unotify(2)), and in a copy of the program the name is changed by
// which Go looks for the way around the kernel (vdso(7)), so that it asks the kernel each time. All
// other clocks run as they do. It owns the filter's descriptor while the program runs, and refuses
// programs other than Go's for Linux on 64 bits. Its functions may be called from any goroutine.
package wrongclock

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	vdsoName  = "__vdso_clock_gettime"
	otherName = "__none_clock_gettime"
)

// Copy writes a copy of a Go program that asks the kernel for every time.
func Copy(to, from string) error {
	program, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("reading the program: %w", err)
	}
	if !bytes.Contains(program, []byte(vdsoName)) {
		return fmt.Errorf("%s does not look like a Go program: it has no %s", from, vdsoName)
	}
	if err := os.WriteFile(to, bytes.ReplaceAll(program, []byte(vdsoName), []byte(otherName)), 0o755); err != nil {
		return fmt.Errorf("writing the program's copy: %w", err)
	}
	return nil
}

// Install puts the filter on the calling process, hence on the program that it executes, and
// returns the descriptor on which the reads arrive. The calling thread must execute the program:
// threads that are there already keep their clock.
func Install() (*os.File, error) {
	// Its offset in struct seccomp_data is 0 for the number of the call and 16 for the first
	// argument (little endian).
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_CLOCK_GETTIME, Jt: 0, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 16},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.CLOCK_REALTIME, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return nil, fmt.Errorf("installing the filter: %w", errno)
	}
	return os.NewFile(fd, "seccomp"), nil
}

// The sizes and offsets are those of struct seccomp_notif, seccomp_notif_resp and seccomp_data in
// linux/seccomp.h.
type (
	notification struct {
		ID    uint64
		PID   uint32
		Flags uint32
		Data  struct {
			Nr                 int32
			Arch               uint32
			InstructionPointer uint64
			Args               [6]uint64
		}
	}
	response struct {
		ID    uint64
		Val   int64
		Error int32
		Flags uint32
	}
)

// Not in golang.org/x/sys under a name of its own: _IOW('!', 2, __u64).
const stillThere = 0x40082102

// Serve answers the reads that arrive on the descriptor with clock's time, until no process with
// the filter is left.
func Serve(listener *os.File, clock func() time.Time) error {
	fd := listener.Fd()
	for {
		var n notification
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n))); errno != 0 {
			switch {
			case errno == unix.EINTR:
				continue
			case errno == unix.ENOENT: // the caller was killed in the meantime; or no process is left, which poll shows
				if gone(fd) {
					return nil
				}
				continue
			}
			return fmt.Errorf("receiving a read of the clock: %w", errno)
		}
		r := response{ID: n.ID}
		if err := put(fd, &n, clock()); err != nil {
			r.Error = -int32(unix.EFAULT)
		}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r))); errno != 0 && errno != unix.ENOENT && errno != unix.EINTR {
			return fmt.Errorf("answering a read of the clock: %w", errno)
		}
	}
}

func gone(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0 && p[0].Revents&unix.POLLHUP != 0
}

// put writes the time to the reader's address.
func put(fd uintptr, n *notification, at time.Time) error {
	var answer [16]byte
	binary.NativeEndian.PutUint64(answer[:], uint64(at.Unix()))
	binary.NativeEndian.PutUint64(answer[8:], uint64(at.Nanosecond()))
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", n.PID), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("opening the reader's memory: %w", err)
	}
	defer memory.Close()
	// Asked after opening: the memory is then the asking thread's, and not that of another with its
	// number.
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, stillThere, uintptr(unsafe.Pointer(&n.ID))); errno != 0 {
		return fmt.Errorf("the reader is gone: %w", errno)
	}
	if _, err := memory.WriteAt(answer[:], int64(n.Data.Args[1])); err != nil {
		return fmt.Errorf("writing to the reader's memory: %w", err)
	}
	return nil
}

// childMark is the first argument of the process that becomes the program.
const childMark = "--become"

// reread is how often the file with the clock's offset is read.
const reread = 300 * time.Millisecond

// ahead is how far the clock is ahead: a number of seconds, or @FILE with one, for a clock that is
// set while the program runs.
func ahead(text string) (func() time.Duration, error) {
	parse := func(text string) (time.Duration, error) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("the seconds: %w", err)
		}
		return time.Duration(n) * time.Second, nil
	}
	file, ok := strings.CutPrefix(text, "@")
	if !ok {
		fixed, err := parse(text)
		return func() time.Duration { return fixed }, err
	}
	read := func() (time.Duration, error) {
		raw, err := os.ReadFile(file)
		if err != nil {
			return 0, fmt.Errorf("reading how far the clock is ahead: %w", err)
		}
		return parse(strings.TrimSpace(string(raw)))
	}
	now, err := read()
	at := time.Now()
	return func() time.Duration { // called by Serve alone
		if time.Since(at) > reread {
			if d, err := read(); err == nil {
				now = d
			}
			at = time.Now()
		}
		return now
	}, err
}

// Main is the whole of a command that runs a program with another time of day: SECONDS PROGRAM
// [ARG...]. The clock is that many seconds ahead; negative ones make it be behind; @FILE reads them
// from a file again and again. It ends with the program's exit code, and takes the program along
// when it is killed.
func Main(args []string) (int, error) {
	if len(args) > 1 && args[0] == childMark {
		return 1, become(args[1:])
	}
	if len(args) < 2 {
		return 2, errors.New("usage: wrongclock SECONDS PROGRAM [ARG...]")
	}
	offset, err := ahead(args[0])
	if err != nil {
		return 2, err
	}
	ours, theirs, err := pair()
	if err != nil {
		return 1, err
	}
	defer ours.Close()
	self, err := os.Executable()
	if err != nil {
		return 1, fmt.Errorf("finding this program: %w", err)
	}
	cmd := exec.Command(self, append([]string{childMark}, args[1:]...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// The death signal is sent when the thread ends that started the child (prctl(2),
	// PR_SET_PDEATHSIG): this one stays as long as we do.
	runtime.LockOSThread()
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("starting the program: %w", err)
	}
	theirs.Close()
	listener, err := take(ours)
	if err != nil {
		return 1, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	served := make(chan error, 1)
	go func() {
		defer listener.Close()
		served <- Serve(listener, func() time.Time { return time.Now().Add(offset()) })
	}()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s) // it may have ended
		}
	}()
	err = cmd.Wait()
	signal.Stop(signals)
	close(signals)
	select {
	case serving := <-served:
		err = errors.Join(err, serving)
	default: // a child of the program's lives on
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// become installs the filter, hands its descriptor to the parent and executes the program.
func become(args []string) error {
	runtime.LockOSThread() // a filter is a thread's, until that executes another program
	listener, err := Install()
	if err != nil {
		return err
	}
	const socket = 3 // the first of ExtraFiles
	if err := unix.Sendmsg(socket, []byte{0}, unix.UnixRights(int(listener.Fd())), nil, 0); err != nil {
		return fmt.Errorf("handing over the filter: %w", err)
	}
	unix.CloseOnExec(socket)
	unix.CloseOnExec(int(listener.Fd()))
	if err := unix.Exec(args[0], args, os.Environ()); err != nil {
		return fmt.Errorf("executing %s: %w", args[0], err)
	}
	return nil
}

func pair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making a pair of sockets: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs"), nil
}

// take receives the filter's descriptor.
func take(from *os.File) (*os.File, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(from.Fd()), make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("receiving the filter: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(errors.New("the program did not start"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.Join(errors.New("the program sent no filter"), err)
	}
	return os.NewFile(uintptr(fds[0]), "seccomp"), nil
}
