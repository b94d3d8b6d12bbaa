// Package suite runs the tests of a package against one whole trial: real edges, a real control
// plane, real containers. The trial is brought up once for the package and is always taken down,
// also when tests fail, hang or panic.
//
// It owns the trial's folder, one for each name and part. It refuses to continue with a trial that
// it could not make whole. A System belongs to one test; tests of a suite run one after the other.
package suite

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

const (
	// inner marks the process that runs the tests, and is its trial's folder. The one that brings
	// the trial up and down is its parent, so that a test which runs out of time, or panics, can't
	// keep the trial from being taken down.
	inner = "SKERRY_E2E_TRIAL"
	// runtimeVersion is another containerd than the machine's, for all nodes (binary.Containerd),
	// or "next" (binary.NextContainerd).
	runtimeVersion = "SKERRY_CONTAINERD"
	// UpTimeout is for a loaded machine; 15 s is usual.
	UpTimeout = 5 * time.Minute
)

// A Suite is the tests of one package.
type Suite struct {
	// Name is the trial folder's, .trial-NAME, and that of the logs which a failed run
	// leaves in build/out.
	Name string
	// Options are the trial's. Every test begins with such a trial.
	Options trial.Options
}

// patience is for the trial to come up. A real machine has one slow processor.
func patience(o trial.Options) time.Duration {
	if o.Machines > 0 {
		return 5 * UpTimeout
	}
	return UpTimeout
}

// Main runs the tests, with a trial where there may be one: as root and without -short. It returns
// the process's exit code; TestMain calls it.
func (s Suite) Main(m *testing.M) int {
	if os.Getenv(inner) != "" || short() || os.Getuid() != 0 {
		return m.Run()
	}
	code, err := s.outer()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", s.Name, err)
		code = max(code, 1)
	}
	return code
}

// short reports -short before the flags are parsed.
func short() bool {
	return slices.ContainsFunc(os.Args, func(a string) bool { return a == "-test.short" || a == "-test.short=true" })
}

// part is which of how many parts of the tests this process runs; each has a trial of its own, so
// that several run side by side. All of them is part 1 of 1.
func part() (n, of int, err error) {
	text := os.Getenv("SKERRY_E2E_SHARD")
	if text == "" {
		return 1, 1, nil
	}
	if _, err := fmt.Sscanf(text, "%d/%d", &n, &of); err != nil || n < 1 || n > of {
		return 0, 0, fmt.Errorf("SKERRY_E2E_SHARD is %q, which is not like 1/2", text)
	}
	return n, of, nil
}

func (s Suite) folder(root string, n, of int) string {
	name := ".trial-" + s.Name
	if of > 1 {
		name += "-" + strconv.Itoa(n)
	}
	return filepath.Join(root, name)
}

// choose narrows the arguments of a test binary to one part of the tests that they name. It returns
// nil where the part is empty.
func choose(ctx context.Context, args []string, n, of int) ([]string, error) {
	if of == 1 {
		return args, nil
	}
	const flag = "-test.run="
	pattern := "."
	var others []string
	for _, a := range args {
		if p, ok := strings.CutPrefix(a, flag); ok {
			pattern = p
		} else {
			others = append(others, a)
		}
	}
	top, below, _ := strings.Cut(pattern, "/")
	list := exec.CommandContext(ctx, os.Args[0], "-test.list="+top)
	list.Env = append(os.Environ(), inner+"=none")
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the tests: %w", err)
	}
	known, err := lengths()
	if err != nil {
		return nil, err
	}
	ours := divide(strings.Fields(string(out)), known, of)[n-1]
	if len(ours) == 0 {
		return nil, nil
	}
	run := flag + "^(" + strings.Join(ours, "|") + ")$"
	if below != "" {
		run += "/" + below
	}
	return append(others, run), nil
}

// usual is the length of a test that the runner has no figure for.
const usual = 10

// lengths reads the seconds that tests took in an earlier run, where the runner recorded them.
func lengths() (known map[string]int, err error) {
	file := os.Getenv("SKERRY_TEST_LENGTHS")
	if file == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(raw, &known)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the lengths of tests: %w", err)
	}
	return known, nil
}

// divide divides tests into parts that take about the same time: each test, the longest first, goes
// to the part that is the shortest so far. Every process that runs a part gets the same division.
func divide(tests []string, known map[string]int, parts int) [][]string {
	length := func(test string) int { return cmp.Or(known[test], usual) }
	byLength := slices.Clone(tests)
	slices.SortStableFunc(byLength, func(a, b string) int { return cmp.Compare(length(b), length(a)) })
	divided, took := make([][]string, parts), make([]int, parts)
	for _, test := range byLength {
		n := slices.Index(took, slices.Min(took))
		divided[n] = append(divided[n], test)
		took[n] += length(test)
	}
	return divided
}

func (s Suite) outer() (code int, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT)
	defer stop()
	root, err := binary.Root()
	if err != nil {
		return 1, err
	}
	n, of, err := part()
	if err != nil {
		return 1, err
	}
	args, err := choose(ctx, os.Args[1:], n, of)
	if err != nil || args == nil {
		return 0, err
	}
	dir := s.folder(root, n, of)
	if _, err := binary.Build(ctx, root, append(s.Options.Programs(), "trial")...); err != nil {
		return 1, err
	}
	if version := os.Getenv(runtimeVersion); version != "" {
		if version == "next" {
			version = binary.NextContainerd
		}
		programs, err := binary.Containerd(ctx, root, version)
		if err != nil {
			return 1, err
		}
		if err := os.Setenv("PATH", programs+string(os.PathListSeparator)+os.Getenv("PATH")); err != nil { // hosts find it by that
			return 1, err
		}
	}
	t, err := trial.Open(root, dir, os.Stderr)
	if err != nil && t == nil {
		return 1, err
	}
	// Leftovers of a killed run go first.
	if err := t.Down(ctx); err != nil {
		return 1, err
	}
	defer func() {
		downCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, t.Down(downCtx))
	}()
	upCtx, cancel := context.WithTimeout(ctx, patience(s.Options))
	defer cancel()
	if err := t.Up(upCtx, s.Options); err != nil {
		return 1, err
	}
	tests := exec.CommandContext(ctx, os.Args[0], args...)
	tests.Env = append(os.Environ(), inner+"="+dir)
	tests.Stdin, tests.Stdout, tests.Stderr = nil, os.Stdout, os.Stderr
	tests.Cancel = func() error { return tests.Process.Signal(syscall.SIGQUIT) } // prints the stacks of a hang
	tests.WaitDelay = 10 * time.Second
	err = tests.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		s.keepLogs(root, dir)
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

// keepLogs saves the programs' logs of a failed run where `make clean` finds them.
func (s Suite) keepLogs(root, dir string) {
	logs, err := filepath.Glob(filepath.Join(dir, "hosts", "*", "log", "*.log"))
	if err != nil {
		return
	}
	out := filepath.Join(root, "build", "out", strings.TrimPrefix(filepath.Base(dir), ".trial-"))
	if err := os.MkdirAll(out, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, s.Name+": keeping the logs:", err)
		return
	}
	for _, log := range logs {
		host := filepath.Base(filepath.Dir(filepath.Dir(log)))
		if err := copyFile(filepath.Join(out, host+"-"+filepath.Base(log)), log); err != nil {
			fmt.Fprintln(os.Stderr, s.Name+": keeping a log:", err)
		}
	}
	fmt.Fprintln(os.Stderr, s.Name+": the logs of this run are in", out)
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
