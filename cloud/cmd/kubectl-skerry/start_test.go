package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
)

const startVariable = "SKERRY_TEST_START"

// TestStartLoadsNoCatalogue: in English no package of kubectl loads its message catalogue, which
// takes 4 MB and half of the start.
func TestStartLoadsNoCatalogue(t *testing.T) {
	if os.Getenv(startVariable) != "" {
		command(genericiooptions.NewTestIOStreamsDiscard())
		return
	}
	most := func(language string) (bytesOfOne int) {
		cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), startVariable+"=1", "GODEBUG=inittrace=1", "LC_ALL="+language)
		var trace bytes.Buffer
		cmd.Stderr = &trace
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %s", err, trace.Bytes())
		}
		// init k8s.io/kubectl/pkg/scheme @14 ms, 2.0 ms clock, 535896 bytes, 2847 allocs
		for lines := bufio.NewScanner(&trace); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			if len(fields) < 9 || fields[0] != "init" || !strings.HasPrefix(fields[1], "k8s.io/kubectl/") {
				continue
			}
			n, err := strconv.Atoi(fields[7])
			if err != nil {
				t.Fatalf("%q: %v", lines.Text(), err)
			}
			bytesOfOne = max(bytesOfOne, n)
		}
		return bytesOfOne
	}
	const catalogue = 2 << 20
	if n := most("C.UTF-8"); n == 0 || n > catalogue {
		t.Errorf("in English one package of kubectl takes %d bytes to initialize, want some, and fewer than %d", n, catalogue)
	}
	if n := most("de_DE.UTF-8"); n < catalogue {
		t.Errorf("in German no package takes more than %d bytes: this test can't see the catalogue", n)
	}
}
