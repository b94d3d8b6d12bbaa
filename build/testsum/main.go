// Command testsum reads what `go test -json` writes, tells a person what matters of it, and counts.
//
//	go test -json ./... 2>&1 | testsum -counts FILE -phase unit    each package's line, the output of what failed, and who runs for long
//	testsum -total -counts FILE                                    one line for all phases: "N passed, N failed, N skipped"
//
// Tests and subtests count alike. A package that fails without a failed test (it does not compile, it panics, it runs out of time) counts as one
// failed. The exit code is 1 when something failed or nothing ran.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

func main() {
	counts := flag.String("counts", "", "`file` that a line of counts is added to")
	phase := flag.String("phase", "tests", "name of this run")
	total := flag.Bool("total", false, "print the sum of the counts in the file instead of reading tests")
	flag.Parse()
	ok, err := run(*counts, *phase, *total, os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

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

func run(file, phase string, total bool, in io.Reader, out io.Writer) (ok bool, err error) {
	if total {
		return sum(file, out)
	}
	c, err := newSummary(out, time.Now).read(in)
	c.Phase = phase
	fmt.Fprintf(out, "== %s: %s\n", phase, c)
	if file != "" {
		err = errors.Join(err, add(file, c))
	}
	return c.Failed == 0, err
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
			all.Passed += c.Passed
			all.Failed += c.Failed
			all.Skipped += c.Skipped
		}
	}
	fmt.Fprintln(out, all)
	return all.Failed == 0 && all.Passed > 0, nil
}
