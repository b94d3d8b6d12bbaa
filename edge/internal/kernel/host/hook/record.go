package hook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/common/atomicfile"
)

// The files of the hook that runs, or ran last.
const (
	lockFile   = "lock" // flock(2) on it: held by the shell in front of a hook for as long as that runs
	recordFile = "hook" // a record
	pidFile    = "pid"  // of the shell, which is the leader of the group; written by it
	exitFile   = "exit" // the exit code; written by the shell
	outputFile = "output"
)

// maxOutput is how many bytes of output are reported, the last ones.
const maxOutput = 4096

// maxFile bounds the file of a hook's output, in bytes: it is cut to its end then. While edgecore
// does not run, it is not cut.
const maxFile = 1 << 20

// record is the state of a hook for a later edgecore.
type record struct {
	ID      string        `json:"id"`
	Boot    string        `json:"boot"`
	Started time.Duration `json:"started"` // on the monotonic clock, which starts with the boot and stops in suspend
	pid     int           // 0: not known yet
}

// records are the files in a folder.
type records struct{ dir, boot string }

func (r records) path(name string) string { return filepath.Join(r.dir, name) }

// last is the hook that ran last in this boot, and whether it still runs. The lock shows it: its
// holder is alive, so that its pid can't be another process's.
func (r records) last() (last record, running bool, err error) {
	raw, err := os.ReadFile(r.path(recordFile))
	if errors.Is(err, os.ErrNotExist) {
		return record{}, false, nil
	}
	if err != nil {
		return record{}, false, fmt.Errorf("reading the record: %w", err)
	}
	if json.Unmarshal(raw, &last) != nil || last.Boot != r.boot {
		return record{}, false, nil // cut off by a full disk, or of another boot: no process is left of that
	}
	over, err := r.over(&last)
	return last, err == nil && !over, err
}

// over reports whether the hook has ended, reaps it where it is our child, and finds its pid.
func (r records) over(of *record) (bool, error) {
	if of.pid == 0 {
		if raw, err := os.ReadFile(r.path(pidFile)); err == nil {
			of.pid, _ = strconv.Atoi(strings.TrimSpace(string(raw)))
		}
	}
	if of.pid > 0 {
		_, _ = syscall.Wait4(of.pid, nil, syscall.WNOHANG, nil) // adopted, it is the child of another
	}
	lock, err := r.lock()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, lock.Close()
}

func (r records) lock() (*os.File, error) {
	f, err := os.OpenFile(r.path(lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock of hooks: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("locking: %w", err), f.Close())
	}
	return f, nil
}

// begin records a hook that is about to start. It is given the lock and a file for its output.
func (r records) begin(id string) (lock, out *os.File, rec record, err error) {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return nil, nil, record{}, fmt.Errorf("making the folder of hooks: %w", err)
	}
	if lock, err = r.lock(); err != nil {
		return nil, nil, record{}, err
	}
	for _, old := range []string{pidFile, exitFile, outputFile} {
		if err := os.Remove(r.path(old)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, nil, record{}, errors.Join(fmt.Errorf("removing the files of an earlier hook: %w", err), lock.Close())
		}
	}
	rec = record{ID: id, Boot: r.boot, Started: monotonic()}
	if out, err = r.write(rec); err != nil {
		return nil, nil, record{}, errors.Join(fmt.Errorf("recording the hook: %w", err), lock.Close())
	}
	return lock, out, rec, nil
}

func (r records) write(rec record) (out *os.File, err error) {
	raw, err := json.Marshal(rec)
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Write(r.path(recordFile), raw, 0o600); err != nil {
		return nil, err
	}
	return os.OpenFile(r.path(outputFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}

// exit is the exit code of the hook that ran last.
func (r records) exit() (code int, ended bool) {
	raw, err := os.ReadFile(r.path(exitFile))
	if err != nil {
		return 0, false
	}
	code, err = strconv.Atoi(strings.TrimSpace(string(raw)))
	return code, err == nil
}

// output returns the end of the hook's output.
func (r records) output() string {
	f, err := os.Open(r.path(outputFile))
	if err != nil {
		return ""
	}
	defer f.Close()
	if i, err := f.Stat(); err == nil && i.Size() > maxOutput {
		if _, err := f.Seek(-maxOutput, io.SeekEnd); err != nil {
			return ""
		}
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxOutput))
	if err != nil {
		return ""
	}
	return string(raw)
}

// shorten cuts the output to its end when it has grown too long. Output printed in that moment is
// lost.
func (r records) shorten() {
	i, err := os.Stat(r.path(outputFile))
	if err != nil || i.Size() <= maxFile {
		return
	}
	end := r.output()
	f, err := os.OpenFile(r.path(outputFile), os.O_WRONLY|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = f.WriteString(end) // the hook writes at the end, too: O_APPEND
}

// monotonic is CLOCK_MONOTONIC: the same for every process of a boot, unlike Go's own
// reading of it.
func monotonic() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
