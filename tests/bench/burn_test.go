package bench_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// burnEnv makes the benchmark's program a busy loop: its value is the number of cores to use.
const burnEnv = "BENCH_BURN"

// runBurn computes until its standard input ends, on so many cores on average, in turns of 10 ms:
// like an unrelated neighbour on the machine.
func runBurn(raw string) error {
	share, err := strconv.ParseFloat(raw, 64)
	if err != nil {
		return err
	}
	const turn = 10 * time.Millisecond
	each := share / float64(runtime.NumCPU())
	for range runtime.NumCPU() {
		go func() {
			runtime.LockOSThread()
			// By the CPU time of the thread: a turn that the kernel gave to others is not counted,
			// and made up for.
			begin, used := time.Now(), threadTime()
			for {
				if owed := time.Duration(each*float64(time.Since(begin))) - (threadTime() - used); owed <= 0 {
					time.Sleep(turn)
				} else if owed > time.Second { // the machine has less: the debt is not saved up
					begin, used = time.Now(), threadTime()
				}
			}
		}()
	}
	fmt.Println("begun")
	_, err = io.Copy(io.Discard, os.Stdin)
	fmt.Println("burnt")
	return err
}

func threadTime() time.Duration {
	const thread = 1 // RUSAGE_THREAD, getrusage(2)
	var u syscall.Rusage
	if err := syscall.Getrusage(thread, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// companion is another process of the benchmark's program that works during a measurement.
type companion struct {
	pid   int
	stdin io.Closer
	lines *bufio.Reader
	wait  func() error
}

// aside starts one, with a variable of the environment that selects its work, and returns when it
// has begun. nice is its share of the processors relative to all others. Where the kernel groups
// processes by session (sched(7), the autogroup feature), niceness counts within a session alone:
// the trial's programs have sessions of their own, so this one gets its own too, and that is made
// as nice.
func aside(b *testing.B, nice int, env, value string) *companion {
	b.Helper()
	exe, err := os.Executable()
	check(b, err)
	cmd := exec.CommandContext(b.Context(), "nice", "-n", strconv.Itoa(nice), exe) // of all its threads
	cmd.Env, cmd.Stderr = append(os.Environ(), env+"="+value), os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err := cmd.StdinPipe()
	check(b, err)
	stdout, err := cmd.StdoutPipe()
	check(b, err)
	check(b, cmd.Start())
	p := &companion{pid: cmd.Process.Pid, stdin: stdin, lines: bufio.NewReader(stdout), wait: cmd.Wait}
	err = os.WriteFile(p.proc("autogroup"), []byte(strconv.Itoa(nice)), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without the feature
		b.Fatal(err)
	}
	line, err := p.lines.ReadString('\n')
	check(b, err)
	if line != "begun\n" {
		b.Fatalf("the companion process reports %q", line)
	}
	return p
}

func (p *companion) proc(file string) string {
	return filepath.Join("/proc", strconv.Itoa(p.pid), file)
}

// end stops it, and returns its output.
func (p *companion) end(b *testing.B) string {
	b.Helper()
	check(b, p.stdin.Close())
	line, err := p.lines.ReadString('\n')
	check(b, err)
	check(b, p.wait())
	return strings.TrimSpace(line)
}
