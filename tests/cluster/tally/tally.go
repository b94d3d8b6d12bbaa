// Package tally counts the expensive things that tests start, for the table of costs that make test
// writes (build/testrun).
//
// It owns a line in a file for each start. Without the file it is disabled. Add may be called from
// any goroutine and any process.
package tally

import "golang.org/x/sys/unix"

// The counted kinds.
const (
	ControlPlane = "control planes"
	Trial        = "trials"
)

// variable names the file; `testrun exec` sets it.
const variable = "SKERRY_TEST_TALLY"

// Add notes that something was started. It asks the kernel and not package os, which would note for
// go test that the result depends on a variable and a file that differ in each run: no result would
// be kept.
func Add(what string) {
	file, ok := unix.Getenv(variable)
	if !ok {
		return
	}
	fd, err := unix.Open(file, unix.O_WRONLY|unix.O_APPEND|unix.O_CLOEXEC, 0)
	if err != nil {
		return // a daemon that outlives its test
	}
	_, _ = unix.Write(fd, []byte(what+"\n")) // a line that is missing costs no test
	_ = unix.Close(fd)
}
