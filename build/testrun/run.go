package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// mostAgain is how many packages of a phase may be run once more. Where more fail it is not the
	// machine's doing.
	mostAgain = 3
	// tick is how often the jobs that run are listed.
	tick = time.Minute
)

// A runner carries out one run.
type runner struct {
	options
	module  string
	self    string // this program
	temp    string // a folder for the run
	shards  *shards
	lengths lengths

	mu     sync.Mutex // guards the fields below, and out
	out    io.Writer
	result result
	again  []secondTry
	failed bool // a failure that a second try can't repair
}

// A secondTry is a package of a phase that failed.
type secondTry struct {
	phase
	retry
}

// run runs the tests. The result is complete also with an error.
func run(ctx context.Context, o options, out io.Writer) (result, error) {
	r := &runner{options: o, out: out}
	if err := os.MkdirAll(outDir, 0o755); err != nil {
		return r.result, fmt.Errorf("making a folder for the results: %w", err)
	}
	for _, old := range []string{resultFile, outDir + "/test-*.log"} {
		files, _ := filepath.Glob(old) // the patterns are ours
		for _, f := range files {
			if err := os.Remove(f); err != nil {
				return r.result, fmt.Errorf("removing what the run before left: %w", err)
			}
		}
	}
	var err error
	if r.self, err = os.Executable(); err != nil {
		return r.result, fmt.Errorf("asking for this program's path: %w", err)
	}
	if r.temp, err = os.MkdirTemp("", "skerry-testrun-"); err != nil {
		return r.result, fmt.Errorf("making a temporary folder: %w", err)
	}
	defer os.RemoveAll(r.temp)
	if r.lengths, err = readLengths(knownLengths); err != nil {
		return r.result, err
	}
	packages, err := r.list(ctx)
	if err != nil {
		return r.result, err
	}
	if o.what != "short" {
		if os.Getuid() != 0 {
			return r.result, errors.New("the tests with namespaces, containers and real kernels need root; 'make test-short' does without")
		}
		giveBack, err := makeRoomForKubelets()
		if err != nil {
			return r.result, err
		}
		defer giveBack()
	}
	r.shards = &shards{module: r.module, self: r.self, temp: r.temp, ldflags: r.ldflags}
	r.carryOut(ctx, packages)
	return r.result, errors.Join(context.Cause(ctx), r.result.write(resultFile))
}

func (r *runner) carryOut(ctx context.Context, packages []string) {
	began, machine := time.Now(), readMachine()
	lanes := r.lanes
	if r.what == "short" {
		r.vet(ctx)
		lanes = 1
	}
	r.inLanes(ctx, plan(r.what, packages, r.options.shards, r.lengths), lanes)
	r.secondTries(ctx)
	if c := lent(); c.User > 0 {
		r.result.row(row{Package: "control planes that were lent", Phase: "all", Tests: c})
	}
	r.result.Broken = r.failed || ctx.Err() != nil
	r.result.Wall = secondsOf(time.Since(began))
	r.result.Machine = readMachine().since(machine)
	if err := r.result.report(r.out); err != nil {
		r.print("== the costs can't be told: %v\n", err)
	}
}

// list lists the packages, as paths within the module.
func (r *runner) list(ctx context.Context) ([]string, error) {
	var err error
	if r.module, err = goCommand(ctx, "list", "-m"); err != nil {
		return nil, err
	}
	all, err := goCommand(ctx, append([]string{"list"}, r.packages...)...)
	if err != nil {
		return nil, err
	}
	var paths []string
	for p := range strings.FieldsSeq(all) {
		paths = append(paths, r.within(p))
	}
	return paths, nil
}

// within is a package's path within the module.
func (r *runner) within(pkg string) string { return strings.TrimPrefix(pkg, r.module+"/") }

func goCommand(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}

// vet examines all that test-short tests, and not only the part of it that is go test's default. On
// a bare machine it reads all of Kubernetes, which takes a processor some nine minutes: for make
// test there is no time for it, and make verify does it.
func (r *runner) vet(ctx context.Context) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"vet"}, r.packages...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.print("%s== vet: FAILED: %v\n", out, err)
		r.failed = true
	}
}

func (r *runner) print(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, format, args...)
}

// inLanes runs jobs side by side, and further ones while the machine has room for them unless their
// number is given. A job's output is printed whole at its end; with one lane, as it comes.
func (r *runner) inLanes(ctx context.Context, jobs []job, lanes int) {
	next := make(chan job)
	var all sync.WaitGroup
	stop, noMore := make(chan struct{}), make(chan struct{})
	var progress sync.WaitGroup
	if lanes > 1 {
		progress.Go(func() { r.progress(stop) })
		if !r.lanesGiven {
			all.Go(func() { spareJobs(next, noMore, roomOfThisMachine(), func(j job) { r.job(ctx, j, true) }) })
		}
	}
	for range lanes {
		all.Go(func() {
			for j := range next {
				r.job(ctx, j, lanes > 1)
			}
		})
	}
	for _, j := range jobs {
		if ctx.Err() != nil {
			break
		}
		next <- j
	}
	close(next)
	close(noMore)
	all.Wait()
	close(stop)
	progress.Wait()
}

func logOf(name string) string {
	return filepath.Join(outDir, "test-"+strings.NewReplacer(" ", "-", "/", "-of-").Replace(name)+".log")
}

func (r *runner) job(ctx context.Context, j job, apart bool) {
	out, began := r.out, time.Now()
	if apart {
		log, err := os.Create(logOf(j.name))
		if err != nil {
			r.print("== %s: %v\n", j.name, err)
			r.fail()
			return
		}
		r.print("== %s: begins, beside the others; so far: %s\n", j.name, log.Name())
		out = log
		defer func() {
			log.Close()
			r.mu.Lock()
			defer r.mu.Unlock()
			if text, err := os.ReadFile(log.Name()); err == nil {
				r.out.Write(text)
			}
			os.Rename(log.Name(), strings.TrimSuffix(log.Name(), ".log")+".ended.log") // a job without such a name runs
		}()
	}
	for _, p := range j.phases {
		if ctx.Err() != nil {
			return
		}
		r.phase(ctx, p, out)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.result.Jobs == nil {
		r.result.Jobs = map[string]seconds{}
	}
	r.result.Jobs[j.name] = secondsOf(time.Since(began))
}

func (r *runner) fail() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

// phase runs a phase, and notes the tests that are to be tried again.
func (r *runner) phase(ctx context.Context, p phase, out io.Writer) {
	fmt.Fprintf(out, "== %s: %d packages\n", p.name, len(p.packages))
	s, c, err := r.goTest(ctx, p, selection(r.what, p), out)
	ok := err == nil && s.counts.Failed == 0
	fmt.Fprintf(out, "== %s: %s; it took %v s, %v s of a processor and %v s of the kernel\n", p.name, s.counts, c.Wall, c.User, c.Kernel)
	var again []retry
	if !ok && s.counts.Failed > 0 {
		again = s.secondTries(mostAgain)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range again {
		r.again = append(r.again, secondTry{p, a})
	}
	if !ok && len(again) == 0 { // too much has failed, or the phase did not get as far
		if err != nil {
			fmt.Fprintf(out, "== %s: FAILED: %v\n", p.name, err)
		}
		r.failed = true
	}
	r.add(s)
}

// add adds the counts of a summary.
func (r *runner) add(s *summary) {
	r.result.Counts.add(s.counts)
	for _, t := range s.slow {
		r.result.Slow = append(r.result.Slow, timedTest{r.within(t.Package), t.Test, t.Seconds})
	}
	for _, w := range s.waits {
		w.Package = r.within(w.Package)
		r.result.Waits = append(r.result.Waits, w)
	}
}

// secondTries runs the tests that failed once more, one package after the other and without any
// other it: they run real kernels, kubelets and elections, and a machine that was busy with
// something else for a while is no fault of theirs. Where a package did not run all its tests, it
// is run whole. The first failure was printed; a test that fails twice has failed; the others are
// named at the end.
func (r *runner) secondTries(ctx context.Context) {
	for _, a := range r.again {
		if ctx.Err() != nil {
			return
		}
		r.print("== FAILED, once more, alone: %v (%s)\n", a.retry, a.name)
		p := a.phase
		p.name, p.packages, p.parallel = a.name+", second try", []string{r.within(a.Package)}, 1
		if len(a.Tests) > 0 {
			p.shard = wholeShard // of these few tests another part could be empty
		}
		flags := selection(r.what, p)
		if len(a.Tests) > 0 {
			flags = append(flags, "-run", a.pattern())
		}
		s, _, err := r.goTest(ctx, p, flags, r.out)
		r.print("== %s: %s\n", p.name, s.counts)
		if err != nil || s.counts.Failed > 0 {
			r.failed = true
		} else if missing := s.notPassed(a.Tests); len(missing) > 0 {
			r.print("== FAILED: these did not run at the second try: %s\n", strings.Join(missing, " "))
			s.counts.Failed += len(missing)
			r.failed = true
		} else {
			r.result.SecondTries = append(r.result.SecondTries, retry{p.packages[0], a.Tests})
		}
		r.add(s)
	}
}

// goTestCommand is go test for all packages of a phase.
func (r *runner) goTestCommand(p phase, selection []string, graph string) *exec.Cmd {
	args := []string{
		"test", "-json", "-vet", "off", "-p", strconv.Itoa(p.parallel), "-timeout", p.binaryTimeout(), "-ldflags", r.ldflags, "-exec", "'" + r.self + "' exec", "-debug-actiongraph", graph,
	}
	args = append(append(args, r.flags...), selection...)
	for _, dir := range p.packages {
		args = append(args, "./"+dir)
	}
	return exec.Command("go", args...)
}

// goTest runs go test and reads its output. c is its cost, with the compiler and the tests.
func (r *runner) goTest(ctx context.Context, p phase, selection []string, out io.Writer) (s *summary, c cost, err error) {
	costs, graph := filepath.Join(r.temp, "costs-"+logName(p.name)), filepath.Join(r.temp, "graph-"+logName(p.name))
	cmd, ok, err := r.shards.command(ctx, p, slices.Concat(r.flags, selection), graph, out)
	if err != nil {
		return newSummary(out, time.Now), c, err
	}
	if !ok {
		cmd = r.goTestCommand(p, selection, graph)
	}
	cmd.Env = slices.Concat(os.Environ(), []string{costsVariable + "=" + costs, ownerVariable + "=" + strconv.Itoa(os.Getpid())}, environment(r.what, p))
	if p.shard != "" {
		file, err := r.lengths.ofTests(p.packages[0], r.temp)
		if err != nil {
			return newSummary(out, time.Now), c, err
		}
		cmd.Env = append(cmd.Env, lengthsVariable+"="+file)
	}
	// A group of its own, so that all of it can be told to end.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	read, write, err := os.Pipe()
	if err != nil {
		return newSummary(out, time.Now), c, fmt.Errorf("making a pipe: %w", err)
	}
	defer read.Close()
	cmd.Stdout, cmd.Stderr = write, write
	began := time.Now()
	if err := cmd.Start(); err != nil {
		write.Close()
		return newSummary(out, time.Now), c, fmt.Errorf("starting go test: %w", err)
	}
	write.Close()
	defer context.AfterFunc(ctx, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) })()
	s = newSummary(out, time.Now)
	err = s.read(read)
	ended := cmd.Wait()
	if ended != nil && s.counts.Failed == 0 { // otherwise it adds no news to the tests
		err = errors.Join(err, fmt.Errorf("go test: %w", ended))
	}
	c = cost{Wall: secondsOf(time.Since(began)), User: secondsOf(cmd.ProcessState.UserTime()), Kernel: secondsOf(cmd.ProcessState.SystemTime())}
	return s, c, errors.Join(err, r.note(p, costs, graph))
}

// note adds the costs of go test and the test binaries to the result.
func (r *runner) note(p phase, costs, graph string) error {
	rows, err := readCosts(costs, graph)
	if err != nil {
		return err
	}
	root, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("asking for the working directory: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, row := range rows {
		row.Phase = p.name
		row.Package = r.within(strings.TrimPrefix(row.Package, root+"/"))
		r.result.row(row)
	}
	return nil
}

// progress prints a line each minute for each job that runs.
func (r *runner) progress(stop chan struct{}) {
	began := time.Now()
	minutes := time.NewTicker(tick)
	defer minutes.Stop()
	for {
		select {
		case <-stop:
			return
		case <-minutes.C:
		}
		load, _ := os.ReadFile("/proc/loadavg")
		r.print("   after %v, load %s:\n", time.Since(began).Round(time.Minute), strings.SplitN(string(load), " ", 2)[0])
		logs, _ := filepath.Glob(outDir + "/test-*.log")
		for _, log := range logs {
			if strings.HasSuffix(log, ".ended.log") {
				continue
			}
			if text, err := os.ReadFile(log); err == nil {
				lines := strings.Split(strings.TrimSpace(string(text)), "\n")
				r.print("   %s: %s\n", filepath.Base(log), lines[len(lines)-1])
			}
		}
	}
}
