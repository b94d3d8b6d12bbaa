package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Counts are the tests of a phase, or of all.
type Counts struct {
	Passed  int `json:"passed"`
	Failed  int `json:"failed"`
	Skipped int `json:"skipped"`
}

func (c Counts) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", c.Passed, c.Failed, c.Skipped)
}

func (c *Counts) add(d Counts) {
	c.Passed += d.Passed
	c.Failed += d.Failed
	c.Skipped += d.Skipped
}

// event is one line of `go test -json` (see `go doc test2json`), or of `go build -json` where a
// test does not compile.
type event struct {
	Action     string
	Package    string
	Test       string
	Output     string
	Elapsed    float64 // seconds
	ImportPath string  // of the build events
}

const (
	// patience is how often the running tests are printed, without other output.
	patience = 30 * time.Second
	// long is the time from which on a test is listed with it.
	long = 10 * time.Second
)

// waited matches a log line of a wait.
var waited = regexp.MustCompile(`: waited ([0-9ms.]+) for (.*)\n$`)

// A summary reads the output of `go test -json`, prints the parts that matter to a person, and
// counts.
type summary struct {
	out    io.Writer
	now    func() time.Time
	counts Counts

	running map[testID]time.Time
	idle    time.Time           // since then no test runs
	output  map[testID][]string // of tests that have not passed yet, and of the package itself under the empty test
	failed  map[string]int      // tests, by package
	by      map[string]*Counts  // by package
	tests   map[testID]*Counts  // by test, with its subtests
	ended   map[string]bool     // packages that failed and ran all their tests
	build   map[string][]string // compiler output, by import path
	slow    []timedTest
	waits   []wait
}

// A timedTest is a test, without its subtests' names, and how long it ran.
type timedTest struct {
	Package string  `json:"package"`
	Test    string  `json:"test"`
	Seconds seconds `json:"seconds"`
}

// A wait is one for a condition, of a test that logs it (suite.WaitFor, package poll).
type wait struct {
	Package string  `json:"package"`
	Test    string  `json:"test"`
	For     string  `json:"for"`
	Seconds seconds `json:"seconds"`
}

type testID struct{ pkg, test string }

func newSummary(out io.Writer, now func() time.Time) *summary {
	return &summary{
		out: out, now: now, idle: now(), running: map[testID]time.Time{}, output: map[testID][]string{}, failed: map[string]int{}, by: map[string]*Counts{},
		tests: map[testID]*Counts{}, ended: map[string]bool{}, build: map[string][]string{},
	}
}

// read reads to the end of in.
func (s *summary) read(in io.Reader) error {
	type line struct {
		text string
		err  error
	}
	lines := make(chan line)
	go func() { // ends with in; the channel is read until then
		defer close(lines)
		r := bufio.NewReader(in)
		for {
			text, err := r.ReadString('\n')
			if text != "" {
				lines <- line{text: text}
			}
			if err != nil {
				if !errors.Is(err, io.EOF) {
					lines <- line{err: err}
				}
				return
			}
		}
	}()
	tick := time.NewTicker(patience)
	defer tick.Stop()
	var failure error
	for {
		select {
		case l, ok := <-lines:
			if !ok {
				return failure
			}
			if l.err != nil {
				failure = l.err
				continue
			}
			s.line(l.text)
		case <-tick.C:
			s.tellRunning()
		}
	}
}

func (s *summary) line(text string) {
	var e event
	if err := json.Unmarshal([]byte(text), &e); err != nil || e.Action == "" {
		fmt.Fprint(s.out, text) // go's own words: a download, a mistake in a pattern
		return
	}
	id := testID{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		s.build[e.ImportPath] = append(s.build[e.ImportPath], e.Output)
	case "build-fail":
		fmt.Fprint(s.out, strings.Join(s.build[e.ImportPath], ""))
		delete(s.build, e.ImportPath)
	case "run":
		s.running[id] = s.now()
	case "output":
		s.output[id] = append(s.output[id], e.Output)
		if found := waited.FindStringSubmatch(e.Output); found != nil {
			if took, err := time.ParseDuration(found[1]); err == nil {
				s.waits = append(s.waits, wait{e.Package, e.Test, found[2], secondsOf(took)})
			}
		}
		if e.Test == "" && e.Output == "FAIL\n" { // package testing prints it after the last test, not after a panic
			s.ended[e.Package] = true
		}
	case "pass", "fail", "skip":
		delete(s.running, id)
		s.idle = s.now()
		if e.Test == "" {
			s.packageEnds(e)
		} else {
			s.testEnds(id, e.Action, time.Duration(e.Elapsed*float64(time.Second)))
		}
	}
}

// of returns the counts of a package.
func (s *summary) of(pkg string) *Counts {
	c, ok := s.by[pkg]
	if !ok {
		c = &Counts{}
		s.by[pkg] = c
	}
	return c
}

// A retry is a package that is run once more.
type retry struct {
	Package string   `json:"package"`
	Tests   []string `json:"tests,omitempty"` // of which alone; without any, all
}

func (r retry) pattern() string { return "^(" + strings.Join(r.Tests, "|") + ")$" }

func (r retry) String() string {
	return strings.TrimSpace(r.Package + " " + strings.Join(r.Tests, " "))
}

// secondTries takes failures out of the counts and returns them: packages which came to their end
// with the tests that failed, others whole. With more than most packages the cause is not chance,
// and no package is run a second time.
func (s *summary) secondTries(most int) []retry {
	var again []retry
	for pkg, c := range s.by {
		if c.Failed == 0 {
			continue
		}
		r := retry{Package: pkg}
		if s.ended[pkg] {
			r.Tests = s.failedTests(pkg)
		}
		again = append(again, r)
	}
	if len(again) > most {
		return nil
	}
	slices.SortFunc(again, func(a, b retry) int { return strings.Compare(a.Package, b.Package) })
	for _, r := range again {
		gone := *s.by[r.Package]
		if len(r.Tests) > 0 {
			gone = Counts{}
			for _, name := range r.Tests {
				gone.add(*s.tests[testID{r.Package, name}])
			}
		}
		s.counts.Passed -= gone.Passed
		s.counts.Failed -= gone.Failed
		s.counts.Skipped -= gone.Skipped
	}
	return again
}

// failedTests lists the tests of a package that failed, by the names that are no
// subtest's, in order.
func (s *summary) failedTests(pkg string) []string {
	var names []string
	for id, c := range s.tests {
		if id.pkg == pkg && c.Failed > 0 {
			names = append(names, id.test)
		}
	}
	slices.Sort(names)
	return names
}

// notPassed lists those of some tests that did not run, or were skipped.
func (s *summary) notPassed(names []string) (missing []string) {
	passed := map[string]bool{}
	for id, c := range s.tests {
		passed[id.test] = c.Passed > 0
	}
	for _, n := range names {
		if !passed[n] {
			missing = append(missing, n)
		}
	}
	return missing
}

func (s *summary) testEnds(id testID, action string, elapsed time.Duration) {
	var one Counts
	switch action {
	case "pass":
		one.Passed = 1
		delete(s.output, id)
	case "skip":
		one.Skipped = 1
		s.tell(id) // a skipped test gives its reason
	case "fail":
		one.Failed = 1
		s.failed[id.pkg]++
		s.tell(id)
	}
	s.counts.add(one)
	s.of(id.pkg).add(one)
	top, _, sub := strings.Cut(id.test, "/")
	if !sub && elapsed >= long {
		s.slow = append(s.slow, timedTest{id.pkg, id.test, secondsOf(elapsed)})
	}
	whole := testID{id.pkg, top}
	if s.tests[whole] == nil {
		s.tests[whole] = &Counts{}
	}
	s.tests[whole].add(one)
}

// packageEnds prints the package's own lines: "ok ...", or all its output where it failed for
// no test's sake.
func (s *summary) packageEnds(e event) {
	if e.Action == "fail" && s.failed[e.Package] == 0 {
		s.counts.Failed++
		s.of(e.Package).Failed++
		for _, id := range s.unfinished(e.Package) { // it panicked or ran out of time in these
			s.tell(id)
		}
	}
	id := testID{pkg: e.Package}
	for _, o := range s.output[id] {
		if e.Action == "fail" || strings.HasPrefix(o, "ok ") {
			fmt.Fprint(s.out, o)
		}
	}
	for _, id := range s.unfinished(e.Package) {
		delete(s.running, id)
		delete(s.output, id)
	}
	delete(s.output, id)
}

// unfinished lists the tests of a package that have begun and not ended, in order.
func (s *summary) unfinished(pkg string) []testID {
	return slices.SortedFunc(func(yield func(testID) bool) {
		for id := range s.running {
			if id.pkg == pkg && !yield(id) {
				return
			}
		}
	}, func(a, b testID) int { return strings.Compare(a.test, b.test) })
}

func (s *summary) tell(id testID) {
	for _, o := range s.output[id] {
		if !strings.HasPrefix(strings.TrimSpace(o), "=== ") { // RUN, PAUSE, CONT
			fmt.Fprint(s.out, o)
		}
	}
	delete(s.output, id)
}

func (s *summary) tellRunning() {
	leaves := maps.Clone(s.running)
	for id := range s.running { // not a test whose subtest runs
		if i := strings.LastIndexByte(id.test, '/'); i >= 0 {
			delete(leaves, testID{id.pkg, id.test[:i]})
		}
	}
	if len(leaves) == 0 {
		fmt.Fprintf(s.out, "   compiling and linking for %v (all of Kubernetes from nothing: 8 to 15 minutes on two cores)\n", s.now().Sub(s.idle).Round(time.Second))
		return
	}
	for id, since := range leaves {
		if d := s.now().Sub(since); d >= patience {
			fmt.Fprintf(s.out, "   runs since %v: %s %s\n", d.Round(time.Second), id.pkg, id.test)
		}
	}
}
