package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
)

// lengthsVariable names a file for package suite: a JSON object of a package's tests and their
// seconds.
const lengthsVariable = "SKERRY_TEST_LENGTHS"

const lengthsFile = "build/testrun/lengths.json"

// Old figures cost balance alone.
//
//go:embed lengths.json
var knownLengths []byte

// lengths are the seconds that jobs and tests took in an earlier run, by which they are divided
// among lanes and parts.
type lengths struct {
	Jobs  map[string]int            `json:"jobs"`
	Tests map[string]map[string]int `json:"tests"` // by the package that runs in parts; tests above 10 s
}

func readLengths(raw []byte) (l lengths, err error) {
	if err := json.Unmarshal(raw, &l); err != nil {
		return l, fmt.Errorf("reading the lengths of jobs and tests: %w", err)
	}
	return l, nil
}

// ofTests writes the lengths of a package's tests to a file for the process that runs a part of
// them.
func (l lengths) ofTests(pkg, dir string) (file string, err error) {
	raw, err := json.Marshal(l.Tests[pkg])
	if err != nil {
		return "", fmt.Errorf("encoding the lengths of tests: %w", err)
	}
	file = filepath.Join(dir, "lengths-"+logName(pkg)+".json")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		return "", fmt.Errorf("writing the lengths of tests: %w", err)
	}
	return file, nil
}

// update takes the lengths from a run's result. Jobs and packages that did not run keep theirs.
func (l lengths) update(r result) lengths {
	next := lengths{Jobs: maps.Clone(l.Jobs), Tests: maps.Clone(l.Tests)}
	for name, took := range r.Jobs {
		if _, ok := next.Jobs[name]; ok {
			next.Jobs[name] = int(took)
		}
	}
	for pkg := range next.Tests {
		ran := map[string]int{}
		for _, t := range r.Slow {
			if t.Package == pkg {
				ran[t.Test] = max(ran[t.Test], int(t.Seconds))
			}
		}
		if len(ran) > 0 {
			next.Tests[pkg] = ran
		}
	}
	return next
}

// updateLengths writes the lengths that the last run's result has.
func updateLengths() error {
	r, err := readResult(resultFile)
	if err != nil {
		return err
	}
	l, err := readLengths(knownLengths)
	if err != nil {
		return err
	}
	raw, err := json.MarshalIndent(l.update(r), "", "\t")
	if err == nil {
		err = os.WriteFile(lengthsFile, append(raw, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", lengthsFile, err)
	}
	return nil
}

func logName(name string) string { return strings.NewReplacer(" ", "-", "/", "-").Replace(name) }
