package program_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/edge/internal/kernel/host/program"
)

// A variable of the caller's counts, and not that of the user's environment before it.
func TestReplace(t *testing.T) {
	const variable = "PROGRAM_TEST"
	if os.Getenv(variable) != "" {
		t.Fatal(program.Replace("/usr/bin/env", nil, append(os.Environ(), variable+"=ours")))
	}
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestReplace$")
	c.Env = append(os.Environ(), variable+"=theirs")
	out, err := c.CombinedOutput()
	if err != nil || strings.Count(string(out), variable+"=") != 1 || !strings.Contains(string(out), variable+"=ours\n") {
		t.Errorf("%v: %s", err, out)
	}
}
