// Command testrun runs the tests: which packages, in how many lanes side by side, failures a second
// time, with a line for everything at the end. It measures the costs of each test binary.
//
//	testrun all|long|short     runs tests; make calls it with CGO_ENABLED, GOFLAGS and TEST_LDFLAGS set
//	testrun total              prints the closing line of the last run: "N passed, N failed, N skipped"
//	testrun costs              prints the tables of the last run, in Markdown
//	testrun lengths            takes the lengths of jobs and tests from the last run (lengths.json)
//	testrun exec BINARY ARG... runs a test binary and notes its costs; `go test -exec` calls it
//
// Its environment: TESTFLAGS is passed on to go test, PACKAGES (./...) selects packages, LANES is
// how many jobs run side by side (five, and up to three more where the machine is idle), SHARDS in
// how many parts tests/e2e runs, each with a trial of its own.
//
// Tests and subtests count alike. A package that fails without a failed test (it does not compile,
// it panics, it runs out of time) counts as one failed. The exit code is 1 when something failed or
// no test ran.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	code, err := command(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func command(args []string) (code int, err error) {
	if len(args) > 1 && args[0] == "exec" {
		return wrap(args[1:])
	}
	if len(args) != 1 {
		return 2, errors.New("one of all, long, short, total, costs, lengths or exec BINARY ARG... must be given")
	}
	switch args[0] {
	case "total":
		r, err := readResult(resultFile)
		fmt.Println(r.Counts)
		return r.exitCode(), err
	case "costs":
		r, err := readResult(resultFile)
		if err != nil {
			return 1, err
		}
		return 0, r.writeTables(os.Stdout)
	case "lengths":
		return 0, updateLengths()
	case "all", "long", "short":
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		o, err := optionsFrom(args[0], os.Getenv)
		if err != nil {
			return 2, err
		}
		r, err := run(ctx, o, os.Stdout)
		fmt.Println(r.Counts)
		return r.exitCode(), err
	}
	return 2, fmt.Errorf("%q is not one of all, long, short, total, costs, lengths", args[0])
}
