package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Counts is what one phase came to.
type Counts struct {
	Phase   string `json:"phase,omitempty"`
	Passed  int    `json:"passed"`
	Failed  int    `json:"failed"`
	Skipped int    `json:"skipped"`
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
	ImportPath string // of the build events
}

// patience is how often the running tests are printed, while nothing else is.
const patience = 30 * time.Second

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
}

type testID struct{ pkg, test string }

func newSummary(out io.Writer, now func() time.Time) *summary {
	return &summary{
		out: out, now: now, idle: now(), running: map[testID]time.Time{}, output: map[testID][]string{}, failed: map[string]int{}, by: map[string]*Counts{},
		tests: map[testID]*Counts{}, ended: map[string]bool{}, build: map[string][]string{},
	}
}

// read reads to the end of in.
func (s *summary) read(in io.Reader) (Counts, error) {
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
				return s.counts, failure
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
		if e.Test == "" && e.Output == "FAIL\n" { // what package testing says when it has run them all; after a panic it does not
			s.ended[e.Package] = true
		}
	case "pass", "fail", "skip":
		delete(s.running, id)
		s.idle = s.now()
		if e.Test == "" {
			s.packageEnds(e)
		} else {
			s.testEnds(id, e.Action)
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

// secondTries takes what failed out of the counts and returns a line for each package: "PACKAGE",
// which is to be run once more whole, or "PACKAGE PATTERN", where only the tests of the pattern (go
// help testflag, -run) are: it came to its end, and all others have passed. With more than most
// packages something is broken, and none is tried again.
func (s *summary) secondTries(most int) []string {
	var again []string
	for pkg, c := range s.by {
		if c.Failed == 0 {
			continue
		}
		names := s.failedTests(pkg)
		if !s.ended[pkg] || len(names) == 0 {
			again = append(again, pkg)
			continue
		}
		again = append(again, pkg+" ^("+strings.Join(names, "|")+")$")
	}
	if len(again) > most {
		return nil
	}
	slices.Sort(again)
	for _, line := range again {
		pkg, pattern, named := strings.Cut(line, " ")
		gone := s.by[pkg]
		if named {
			gone = &Counts{}
			for _, name := range strings.Split(strings.Trim(pattern, "^()$"), "|") {
				gone.add(*s.tests[testID{pkg, name}])
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

func (s *summary) testEnds(id testID, action string) {
	var one Counts
	switch action {
	case "pass":
		one.Passed = 1
		delete(s.output, id)
	case "skip":
		one.Skipped = 1
		s.tell(id) // a skipped test says why
	case "fail":
		one.Failed = 1
		s.failed[id.pkg]++
		s.tell(id)
	}
	s.counts.add(one)
	s.of(id.pkg).add(one)
	top, _, _ := strings.Cut(id.test, "/")
	whole := testID{id.pkg, top}
	if s.tests[whole] == nil {
		s.tests[whole] = &Counts{}
	}
	s.tests[whole].add(one)
}

// packageEnds prints the package's own lines: "ok ...", or all it said where it failed for
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
	for id := range s.running { // a test whose subtest runs adds nothing
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
