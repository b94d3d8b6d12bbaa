package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// A result is that of a run.
type result struct {
	Counts
	// Broken also where no test is to blame: vet, or a phase that did not begin.
	Broken      bool        `json:"broken,omitempty"`
	SecondTries []retry     `json:"secondTries,omitempty"` // that passed only then
	Wall        seconds     `json:"wall"`
	Machine     machine     `json:"machine"` // all of it, with the kernel's own threads and whatever else runs there
	Rows        []row       `json:"rows,omitempty"`
	Slow        []timedTest `json:"slow,omitempty"`
	Waits       []wait      `json:"waits,omitempty"` // that tests logged
	// Jobs is how long each took.
	Jobs map[string]seconds `json:"jobs,omitempty"`
}

// A row is the cost of a package in one phase.
type row struct {
	Package string `json:"package"`
	Phase   string `json:"phase"`
	Tests   cost   `json:"tests"`
	Compile cost   `json:"compile"` // of packages that only it needs, or that it was the first to need
	Link    cost   `json:"link"`
}

func (r row) processor() seconds {
	return r.Tests.User + r.Tests.Kernel + r.Compile.User + r.Compile.Kernel + r.Link.User + r.Link.Kernel
}

func (r result) exitCode() int {
	if r.Broken || r.Counts.Failed > 0 || r.Passed == 0 {
		return 1
	}
	return 0
}

// row adds a row, to that of the same package and phase where there is one.
func (r *result) row(n row) {
	for i := range r.Rows {
		if have := &r.Rows[i]; have.Package == n.Package && have.Phase == n.Phase {
			have.Tests.add(n.Tests)
			have.Compile.add(n.Compile)
			have.Link.add(n.Link)
			return
		}
	}
	r.Rows = append(r.Rows, n)
}

func (r result) write(file string) error {
	raw, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(file, append(raw, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	return nil
}

// readResult reads the result of the last run; without one, no test has passed.
func readResult(file string) (result, error) {
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return result{}, nil
	}
	var r result
	if err == nil {
		err = json.Unmarshal(raw, &r)
	}
	if err != nil {
		return result{}, fmt.Errorf("reading the result of the last run: %w", err)
	}
	return r, nil
}

// readCosts reads the notes of exec, and the go command's of its own work (the option
// -debug-actiongraph). Both files may be missing: no test ran, or no package was compiled.
func readCosts(costs, graph string) ([]row, error) {
	var rows []row
	f, err := os.Open(costs)
	if err == nil {
		defer f.Close()
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			var c cost
			if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
				return nil, fmt.Errorf("reading costs: %w", err)
			}
			rows = append(rows, row{Package: c.Dir, Tests: c})
		}
		err = lines.Err()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading costs: %w", err)
	}
	raw, err := os.ReadFile(graph)
	if errors.Is(err, fs.ErrNotExist) {
		return rows, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading what go test did: %w", err)
	}
	var actions []struct {
		Mode, Package string
		Cmd           []string
		CmdReal       time.Duration
		CmdUser       time.Duration
		CmdSys        time.Duration
	}
	if len(raw) == 0 || json.Unmarshal(raw, &actions) != nil {
		return rows, nil // a format of another Go: the figures are missing
	}
	for _, a := range actions {
		if len(a.Cmd) == 0 {
			continue
		}
		c := cost{Wall: secondsOf(a.CmdReal), User: secondsOf(a.CmdUser), Kernel: secondsOf(a.CmdSys)}
		// a package, its tests' ("p [p.test]") and its test's main ("p.test")
		pkg, _, _ := strings.Cut(a.Package, " ")
		n := row{Package: strings.TrimSuffix(strings.TrimSuffix(pkg, ".test"), "_test")}
		switch a.Mode {
		case "build":
			n.Compile = c
		case "link":
			n.Link = c
		default:
			continue
		}
		rows = append(rows, n)
	}
	return rows, nil
}

// writeTables prints the costs of the run, in Markdown.
func (r result) writeTables(out io.Writer) error {
	var tests, compile, link cost
	for _, w := range r.Rows {
		tests.add(w.Tests)
		compile.add(w.Compile)
		link.add(w.Link)
	}
	b := bufio.NewWriter(out)
	fmt.Fprintf(b, "| all | wall s | processor s | user s | kernel s |\n| --- | ---: | ---: | ---: | ---: |\n")
	line := func(name string, c cost) {
		fmt.Fprintf(b, "| %s | %v | %v | %v | %v |\n", name, c.Wall, c.User+c.Kernel, c.User, c.Kernel)
	}
	whole := cost{Wall: r.Wall, User: r.Machine.User, Kernel: r.Machine.Kernel}
	line("the machine", whole)
	line("test binaries and all that they start", tests)
	line("compilation", compile)
	line("links", link)
	line("the rest: the kernel's threads, the go command", cost{
		User: whole.User - tests.User - compile.User - link.User, Kernel: whole.Kernel - tests.Kernel - compile.Kernel - link.Kernel,
	})
	fmt.Fprintf(b, "\n%s\n\n", startsText(tests.Starts))
	fmt.Fprintf(b, "| package | phase | wall s | user s | kernel s | compilation s | link s | starts |\n| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |\n")
	for _, w := range r.dearest(len(r.Rows)) {
		if w.processor() < 1 {
			break
		}
		fmt.Fprintf(b, "| %s | %s | %v | %v | %v | %v | %v | %s |\n", w.Package, w.Phase, w.Tests.Wall, w.Tests.User, w.Tests.Kernel,
			w.Compile.User+w.Compile.Kernel, w.Link.User+w.Link.Kernel, startsText(w.Tests.Starts))
	}
	fmt.Fprintf(b, "\n| test above %v | package | wall s |\n| --- | --- | ---: |\n", long)
	for _, t := range r.slowest(len(r.Slow)) {
		fmt.Fprintf(b, "| %s | %s | %v |\n", t.Test, t.Package, t.Seconds)
	}
	fmt.Fprintf(b, "\nTests waited %v s for conditions:\n\n| condition | test | s |\n| --- | --- | ---: |\n", total(r.Waits))
	for _, w := range slices.SortedFunc(slices.Values(r.Waits), func(a, b wait) int { return cmp.Compare(b.Seconds, a.Seconds) }) {
		fmt.Fprintf(b, "| %s | %s %s | %v |\n", strings.ReplaceAll(w.For, "|", "/"), w.Package, w.Test, w.Seconds)
	}
	return b.Flush()
}

func total(waits []wait) (all seconds) {
	for _, w := range waits {
		all += w.Seconds
	}
	return all
}

func startsText(starts map[string]int) string {
	var parts []string
	for what, n := range starts {
		parts = append(parts, fmt.Sprintf("%d %s", n, what))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

func (r result) dearest(n int) []row {
	rows := slices.SortedFunc(slices.Values(r.Rows), func(a, b row) int { return cmp.Compare(b.processor(), a.processor()) })
	return rows[:min(n, len(rows))]
}

func (r result) slowest(n int) []timedTest {
	slow := slices.SortedFunc(slices.Values(r.Slow), func(a, b timedTest) int { return cmp.Compare(b.Seconds, a.Seconds) })
	return slow[:min(n, len(slow))]
}

// report prints the ten dearest packages, the ten longest tests and those that passed only at a
// second try, and writes the whole tables to a file.
func (r result) report(out io.Writer) error {
	const most = 10
	f, err := os.Create(tableFile)
	if err != nil {
		return fmt.Errorf("writing the tables: %w", err)
	}
	if err := errors.Join(r.writeTables(f), f.Close()); err != nil {
		return fmt.Errorf("writing the tables: %w", err)
	}
	fmt.Fprintf(out, "== it took %v s; the machine's processors %v s for programs and %v s for the kernel, %v s idle, %v s stolen by the host; tables: %s\n",
		r.Wall, r.Machine.User, r.Machine.Kernel, r.Machine.Idle, r.Machine.Stolen, tableFile)
	fmt.Fprintf(out, "== dearest packages:%14s %8s %8s %8s\n", "user s", "kernel s", "build s", "wall s")
	for _, d := range r.dearest(most) {
		fmt.Fprintf(out, "   %-30s %8v %8v %8v %8v  %s\n", d.Package, d.Tests.User, d.Tests.Kernel, d.Compile.User+d.Compile.Kernel+d.Link.User+d.Link.Kernel, d.Tests.Wall, d.Phase)
	}
	fmt.Fprintf(out, "== longest tests:\n")
	for _, t := range r.slowest(most) {
		fmt.Fprintf(out, "   %5v s  %s %s\n", t.Seconds, t.Package, t.Test)
	}
	return r.tellSecondTries(out)
}

// tellSecondTries names each test that passed only at its second try, and in how many of the last
// runs on this machine it did.
func (r result) tellSecondTries(out io.Writer) error {
	history, err := readTries(triesFile)
	if err != nil {
		return err
	}
	now := names(r.SecondTries)
	history = append(history, now)
	for _, name := range now {
		n := 0
		for _, run := range history {
			if slices.Contains(run, name) {
				n++
			}
		}
		fmt.Fprintf(out, "== PASSED ONLY AT ITS SECOND TRY, in %d of the last %d runs: %s\n", n, len(history), name)
	}
	fmt.Fprintf(out, "== second tries: %d\n", len(now))
	return appendLine(triesFile, now)
}

// names are the tests of second tries, one each; a package that was run whole is one.
func names(tries []retry) []string {
	all := []string{} // not nil: a line of the file
	for _, t := range tries {
		for _, test := range t.Tests {
			all = append(all, t.Package+" "+test)
		}
		if len(t.Tests) == 0 {
			all = append(all, t.Package)
		}
	}
	return all
}

// readTries reads the second tries of the last ten runs.
func readTries(file string) ([][]string, error) {
	const most = 9 // and the one of now
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading earlier second tries: %w", err)
	}
	var all [][]string
	for line := range strings.Lines(string(raw)) {
		var run []string
		if err := json.Unmarshal([]byte(line), &run); err != nil {
			return nil, fmt.Errorf("reading earlier second tries: %w", err)
		}
		all = append(all, run)
	}
	return all[max(0, len(all)-most):], nil
}
