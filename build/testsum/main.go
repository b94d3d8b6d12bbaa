// Command testsum reads what `go test -json` writes, prints what matters of it to a person, and
// counts.
//
//	go test -json ./... 2>&1 | testsum -counts FILE -phase unit    each package's line, the output of what failed, and who runs for long
//	... testsum -again FILE                                        packages that failed go into FILE, a line each, with a pattern of the tests that did where the rest has passed; see build/test.sh
//	testsum -total -counts FILE                                    one line for all phases: "N passed, N failed, N skipped"
//
// Tests and subtests count alike. A package that fails without a failed test (it does not compile,
// it panics, it runs out of time) counts as one failed. The exit code is 1 when something failed
// or nothing ran.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

func main() {
	counts := flag.String("counts", "", "`file` that a line of counts is added to")
	phase := flag.String("phase", "tests", "name of this run")
	total := flag.Bool("total", false, "print the sum of the counts in the file instead of reading tests")
	again := flag.String("again", "", "`file` for the packages that failed, which are then left out of the counts")
	flag.Parse()
	ok, err := run(options{*counts, *phase, *again, *total}, os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

type options struct {
	counts, phase, again string
	total                bool
}

// mostAgain is how many packages of a phase may be run once more. Where more fail it is not the
// machine's doing.
const mostAgain = 3

func run(o options, in io.Reader, out io.Writer) (ok bool, err error) {
	if o.total {
		return sum(o.counts, out)
	}
	s := newSummary(out, time.Now)
	c, err := s.read(in)
	c.Phase = o.phase
	fmt.Fprintf(out, "== %s: %s\n", o.phase, c)
	ok = c.Failed == 0 && err == nil
	if o.again != "" && !ok && err == nil {
		packages := s.secondTries(mostAgain)
		c = s.counts
		c.Phase = o.phase
		err = os.WriteFile(o.again, []byte(strings.Join(append(packages, ""), "\n")), 0o644)
	}
	if o.counts != "" {
		err = errors.Join(err, add(o.counts, c))
	}
	return ok, err
}

// add appends a line to the file.
func add(file string, c Counts) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(json.NewEncoder(f).Encode(c), f.Close())
}

// sum prints the one line for everything.
func sum(file string, out io.Writer) (bool, error) {
	f, err := os.Open(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	var all Counts
	if err == nil {
		defer f.Close()
		for d := json.NewDecoder(f); ; {
			var c Counts
			if err := d.Decode(&c); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return false, fmt.Errorf("%s: %w", file, err)
			}
			all.add(c)
		}
	}
	fmt.Fprintln(out, all)
	return all.Failed == 0 && all.Passed > 0, nil
}
