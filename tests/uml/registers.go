package uml

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TooWide reports whether this machine's registers are too wide for user-mode Linux 6.1: a guest
// must then be started with hide.
func TooWide() (bool, error) {
	raw, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return false, fmt.Errorf("looking at the processor: %w", err)
	}
	return regexp.MustCompile(`(?m)^flags\b.*\bamx_tile\b`).Match(raw), nil
}

// Start starts a guest on one processor, before others there; with hide it has no way to the wide
// vector registers.
//
// UML 6.1 moves them between its processes by PTRACE_SETREGSET with a buffer of a size that was
// known when it was built, and the machine's kernel needs the whole of them (xstateregs_set in
// Linux): on a CPU that has more, as every one with AMX, the guest dies at boot with "ptrace set fp
// regs failed". Where its first question for them fails it moves the registers of 1999 instead, by
// PTRACE_SETFPREGS. So a filter fails that question. The upper halves of the registers are then
// lost at every fault of a page: programs in the guest must do without them (noWideRegisters).
func Start(cmd *exec.Cmd, hide bool) error {
	result := make(chan error, 1)
	go func() {
		// The filter is this thread's, and inherited by the processes that it starts. It ends with
		// the goroutine, which never releases it.
		runtime.LockOSThread()
		err := onOneProcessor()
		if hide {
			err = errors.Join(err, hideWideRegisters())
		}
		if err != nil {
			result <- err
			return
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err = cmd.Start(); err == nil {
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

// noWideRegisters are words for the guest's kernel, which it hands to its first process as
// environment: Go's own code, and glibc's, then do without AVX.
func noWideRegisters() []string {
	return []string{"GODEBUG=cpu.avx=off,cpu.avx2=off", "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX512BW,-AVX_Fast_Unaligned_Load"}
}

// hideWideRegisters makes ptrace(PTRACE_GETREGSET, pid, NT_X86_XSTATE) fail for the calling thread
// and the processes that it starts. Offsets are those of struct seccomp_data in linux/seccomp.h: 0
// the number of the call, 16 and 32 its first and third argument.
func hideWideRegisters() error {
	const ntX86XState = 0x202 // linux/elf.h
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_PTRACE, Jf: 5},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 16},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.PTRACE_GETREGSET, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 32},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: ntX86XState, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EIO)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return fmt.Errorf("installing the filter: %w", errno)
	}
	return nil
}
