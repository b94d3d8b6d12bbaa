package main

import (
	"fmt"
	"strconv"
	"strings"
)

// Where a run leaves its things.
const (
	outDir     = "build/out"
	resultFile = outDir + "/test-result.json"
	tableFile  = outDir + "/test-costs.md"
	triesFile  = outDir + "/test-second-tries.jsonl"
)

// options are those of a run.
type options struct {
	what     string // all, long or short
	packages []string
	flags    []string
	ldflags  string
	lanes    int
	// lanesGiven reports that the caller has chosen the number of lanes.
	lanesGiven bool
	shards     int
}

func optionsFrom(what string, env func(string) string) (options, error) {
	o := options{what: what, packages: strings.Fields(env("PACKAGES")), flags: strings.Fields(env("TESTFLAGS")), ldflags: env("TEST_LDFLAGS"), lanes: 5, shards: 4}
	if len(o.packages) == 0 {
		o.packages = []string{"./..."}
	}
	for name, into := range map[string]*int{"LANES": &o.lanes, "SHARDS": &o.shards} {
		text := env(name)
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return o, fmt.Errorf("%s is %q, which is not a number above 0", name, text)
		}
		*into = n
		o.lanesGiven = o.lanesGiven || name == "LANES"
	}
	return o, nil
}
