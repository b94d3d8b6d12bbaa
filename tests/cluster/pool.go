package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/tests/cluster/process"
)

const (
	// ownerEnv names the process with which lent control planes end: a runner of several `go test`
	// sets it to its own process id.
	ownerEnv = "SKERRY_PLANES_OWNER"
	// idleEnv is how long one waits for the next borrower, where kubeplane's default is too long.
	idleEnv = "SKERRY_PLANES_IDLE"
	// most bounds the control planes of one owner; as many processes of tests run side by side.
	most = 64

	// As kubeplane has them, whose package would bring all of Kubernetes into each test.
	kubeplaneSocket = "reset.sock"
	kubeplaneDone   = "reset\n"
)

// shared is the control plane of Shared, made at the first call.
var shared struct {
	sync.Mutex
	plane *ControlPlane
	err   error
	// asked are the tests that have asked since it was as new, by their names: each shows the log
	// once if it fails. Another one of the same name is the beginning of another round.
	asked map[string]testing.TB
}

// Shared is one control plane for all tests of this process, as new when the first of them asks,
// and again in each round of `go test -count`. It goes back to the pool with the process.
func Shared(t testing.TB) *ControlPlane {
	t.Helper()
	skipShort(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.plane == nil && shared.err == nil {
		// Not the context of the test: the control plane is for those after it too.
		shared.plane, shared.err = borrow(context.WithoutCancel(t.Context()))
		shared.asked = map[string]testing.TB{}
	}
	if before := shared.asked[t.Name()]; before != nil && before != t && shared.err == nil {
		shared.plane, shared.err = reuse(t.Context(), shared.plane.Dir, shared.plane.lock)
		clear(shared.asked)
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	if shared.asked[t.Name()] == nil {
		shared.asked[t.Name()] = t
		plane := shared.plane
		t.Cleanup(func() { showLog(t, plane) })
	}
	return shared.plane
}

// Run lends one test a control plane that is as new, and gives it back with the test.
func Run(t testing.TB) *ControlPlane {
	t.Helper()
	skipShort(t)
	c, err := borrow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		showLog(t, c)
		c.lock.Close()
	})
	return c
}

// owner is the process with which the pool ends: that of ownerEnv, else the `go test` that runs
// this process, else, where a test binary was started by hand, this process.
func owner() (process.Identity, error) {
	pid := os.Getpid()
	// Asked of the kernel: package os would note for go test that the result depends on it (package
	// tally).
	if named, _ := unix.Getenv(ownerEnv); named != "" {
		var err error
		if pid, err = strconv.Atoi(named); err != nil {
			return process.Identity{}, fmt.Errorf("%s: %q is not a process id", ownerEnv, named)
		}
	} else if line := process.Cmdline(os.Getppid()); len(line) > 1 && filepath.Base(line[0]) == "go" && line[1] == "test" {
		pid = os.Getppid()
	}
	return process.Find(pid)
}

// borrow returns a control plane that no other process has, as new: the first of the pool that is
// free, reset, or a further one. It is the caller's until its lock is closed, or until this process
// ends: the kernel then drops it. The lock is a field of the control plane, as an unreferenced file
// is closed by the garbage collector.
func borrow(ctx context.Context) (*ControlPlane, error) {
	owner, err := owner()
	if err != nil {
		return nil, err
	}
	for n := range most {
		// A pid may come again, a pid with its start time doesn't (process.Identity).
		dir := filepath.Join(os.TempDir(), fmt.Sprintf("skerry-plane-%d-%d-%d-%d", os.Getuid(), owner.PID, owner.Start, n))
		lock, err := tryLock(dir)
		if err != nil {
			return nil, err
		}
		if lock == nil {
			continue
		}
		c, err := reuse(ctx, dir, lock)
		if errors.Is(err, os.ErrNotExist) {
			c, err = startLent(ctx, dir, owner, lock)
		}
		if err != nil {
			lock.Close()
			return nil, err
		}
		return c, nil
	}
	return nil, fmt.Errorf("all %d control planes of process %d are lent", most, owner.PID)
}

const lockName = "borrowed" // as kubeplane has it

// tryLock makes a directory of the pool, which is nobody else's, and locks it; nil when it is lent.
func tryLock(dir string) (*os.File, error) {
	for {
		lock, err := tryLockOnce(dir)
		if err != nil || lock == nil {
			return lock, err
		}
		// A control plane that was idle removes its directory, with the lock that was opened.
		var ours, there unix.Stat_t
		if err := unix.Fstat(int(lock.Fd()), &ours); err != nil {
			lock.Close()
			return nil, fmt.Errorf("looking at the lock of a control plane: %w", err)
		}
		if unix.Stat(lock.Name(), &there) == nil && there.Ino == ours.Ino && there.Dev == ours.Dev {
			return lock, nil
		}
		lock.Close()
	}
}

func tryLockOnce(dir string) (*os.File, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("making a control plane's directory: %w", err)
	}
	// Its name can be guessed, and others may make directories next to it.
	var made unix.Stat_t
	err := unix.Lstat(dir, &made)
	if errors.Is(err, unix.ENOENT) { // removed since
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking at %s: %w", dir, err)
	}
	if made.Mode != unix.S_IFDIR|0o700 || int(made.Uid) != os.Getuid() {
		return nil, fmt.Errorf("%s is not a directory that only we may enter: remove it", dir)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("opening the lock of a control plane: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, fmt.Errorf("locking a control plane: %w", err)
}

// reuse resets the control plane of a directory; os.ErrNotExist when it does not run.
func reuse(ctx context.Context, dir string, lock *os.File) (*ControlPlane, error) {
	c := &ControlPlane{Dir: dir, lock: lock}
	ready, err := c.ready()
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	conn, err := d.DialContext(ctx, "unix", filepath.Join(dir, kubeplaneSocket))
	if errors.Is(err, unix.ECONNREFUSED) { // it was killed
		return nil, os.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("asking a control plane to reset: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	answer, err := io.ReadAll(conn)
	if err != nil {
		return nil, fmt.Errorf("waiting for the reset of a control plane: %w", err)
	}
	if string(answer) != kubeplaneDone {
		return nil, fmt.Errorf("resetting the control plane in %s: %s", dir, answer)
	}
	return c, c.adopt(ready.Server, ready.Kubeconfig)
}

// startLent starts a control plane in a directory of the pool. It outlives this process and ends
// with its owner.
func startLent(ctx context.Context, dir string, owner process.Identity, lock *os.File) (*ControlPlane, error) {
	old, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading a control plane's directory: %w", err)
	}
	for _, e := range old { // of one that was killed
		if e.Name() != lockName {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return nil, fmt.Errorf("clearing a control plane's directory: %w", err)
			}
		}
	}
	flags := []string{"--owner=" + strconv.Itoa(owner.PID)}
	if idle, _ := unix.Getenv(idleEnv); idle != "" {
		flags = append(flags, "--idle="+idle)
	}
	c, err := prepare(ctx, dir, flags...)
	if err != nil {
		return nil, err
	}
	c.lock = lock
	return c, c.start(ctx)
}
