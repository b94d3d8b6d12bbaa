package app

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"

	"github.com/skerry-io/skerry/edge/internal/core/launch"
)

// maxTrialLog bounds the log of a trial, in bytes: beyond it the older half goes.
const maxTrialLog = 64 << 10

// maxTrialWrites bounds all that is written of it, in bytes: a process whose trial has succeeded
// goes on for months, on flash memory.
const maxTrialWrites = 4 << 20

// TrialLog returns a writer for the log of a trial, the end of which its operation reports. In any
// other process it is io.Discard. A panic is written to the file, too.
func TrialLog() io.Writer {
	started, ok := launch.FromEnvironment()
	if !ok || !started.Trial {
		return io.Discard
	}
	t, err := newTailFile(filepath.Join(started.Dir, trialLog))
	if err == nil {
		err = debug.SetCrashOutput(t.file, debug.CrashOptions{})
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "edgecore: opening the log of the trial: %v\n", err)
		return io.Discard
	}
	return t
}

// tailFile is a file with the end of what was written. Errors are ignored: a full disk must not end
// the log that has the file as one of its writers.
type tailFile struct {
	mu   sync.Mutex
	file *os.File
	size int64
	all  int64 // written so far
}

func newTailFile(path string) (*tailFile, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return &tailFile{file: f}, nil
}

// Write implements io.Writer.
func (t *tailFile) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all > maxTrialWrites {
		return len(b), nil
	}
	if t.size+int64(len(b)) > maxTrialLog {
		half := make([]byte, min(t.size, maxTrialLog/2))
		n, _ := t.file.ReadAt(half, t.size-int64(len(half)))
		_ = t.file.Truncate(0)
		t.size = 0
		t.append(half[:n])
	}
	t.append(b[max(0, len(b)-maxTrialLog/2):])
	return len(b), nil
}

func (t *tailFile) append(b []byte) {
	n, _ := t.file.Write(b)
	t.size += int64(n)
	t.all += int64(n)
}
