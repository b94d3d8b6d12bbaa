package uml

import (
	"bytes"
	_ "embed"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// wide reports whether the processor has registers that user-mode Linux 6.1 does not know.
func wide() (bool, error) {
	raw, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return false, fmt.Errorf("reading the processor's features: %w", err)
	}
	return regexp.MustCompile(`(?m)^flags\b.*\bamx_tile\b`).Match(raw), nil
}

// ptraceSource is the ptrace(2) with which user-mode Linux runs on a processor with AMX; its first
// comment has the reason. A compiler is needed there alone (build/deps.sh).
//
//go:embed xstate/ptrace.c
var ptraceSource []byte

// preloadPtrace compiles ptraceSource into dir, and sets it in the environment of cmd, which must
// be set.
func preloadPtrace(cmd *exec.Cmd, dir string) error {
	library := filepath.Join(dir, "ptrace.so")
	compile := exec.Command("gcc", "-O2", "-shared", "-fPIC", "-nostdlib", "-ffreestanding", "-x", "c", "-o", library, "-")
	compile.Stdin = bytes.NewReader(ptraceSource)
	if out, err := compile.CombinedOutput(); err != nil {
		return fmt.Errorf("compiling ptrace for this processor: %w: %s", err, out)
	}
	cmd.Env = append(cmd.Env, "LD_PRELOAD="+library)
	return nil
}

// Start starts a guest on one processor, with priority there. It keeps its files in dir, which must
// exist as long as the guest runs.
func Start(cmd *exec.Cmd, dir string) error {
	needed, err := wide()
	if err == nil && needed {
		err = preloadPtrace(cmd, dir)
	}
	if err != nil {
		return err
	}
	result := make(chan error, 1)
	go func() {
		// The affinity is this thread's, and inherited by the processes that it starts. It ends
		// with the goroutine, which never releases it.
		runtime.LockOSThread()
		if err := onOneProcessor(); err != nil {
			result <- err
			return
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		err := cmd.Start()
		if err == nil {
			// With automatic groups a session's processes have their priority among themselves, and
			// the session one among sessions (sched(7)). A kernel without them has no such file.
			_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", cmd.Process.Pid), []byte("-15"), 0)
		}
		result <- err
	}()
	return <-result
}

// onOneProcessor keeps the calling thread, and the processes that it starts, on one processor,
// before others there. Each system call of the guest is handed from its process to its kernel and
// back by ptrace: two processes that never run at once, each of which would wait in a queue of the
// machine's every time.
func onOneProcessor() error {
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return fmt.Errorf("asking for the processors: %w", err)
	}
	turn := rand.IntN(all.Count()) // guests of several tests spread
	for i := range 8 * int(unsafe.Sizeof(all)) {
		if !all.IsSet(i) {
			continue
		}
		if turn--; turn < 0 {
			one.Set(i)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("choosing a processor: %w", err)
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, -15); err != nil {
		return fmt.Errorf("raising the priority: %w", err)
	}
	return nil
}
