package wrongclock_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/cluster/wrongclock"
)

const printTime = "print-time"

// TestMain: this program is also the one that is launched, and the launcher.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 3 && os.Args[1] == printTime:
		fmt.Println(time.Now().Unix(), time.Since(time.Now()) < time.Minute)
		code, _ := strconv.Atoi(os.Args[2])
		os.Exit(code)
	case os.Getenv("WRONGCLOCK_LAUNCH") != "":
		code, err := wrongclock.Main(os.Args[1:])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(code)
	}
	os.Exit(m.Run())
}

func TestMainShowsAnotherTime(t *testing.T) {
	if testing.Short() || os.Getuid() != 0 {
		t.Skip("filters are installed only as root and without -short")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "program")
	if err := wrongclock.Copy(program, self); err != nil {
		t.Fatal(err)
	}
	now := time.Now().Unix()
	for name, c := range map[string]struct {
		offset int64
		code   int
	}{
		"1970":   {-now, 0},
		"later":  {1 << 30, 0},
		"a code": {0, 7},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), self, fmt.Sprint(c.offset), program, printTime, fmt.Sprint(c.code))
			cmd.Env = append(os.Environ(), "WRONGCLOCK_LAUNCH=1")
			out, err := cmd.Output()
			if code := cmd.ProcessState.ExitCode(); code != c.code {
				t.Fatalf("code %d, want %d: %v", code, c.code, err)
			}
			var seen int64
			var monotonic bool
			if _, err := fmt.Sscan(string(out), &seen, &monotonic); err != nil {
				t.Fatalf("%q: %v", out, err)
			}
			if off := seen - (now + c.offset); off < 0 || off > 60 || !monotonic {
				t.Errorf("the program saw %d, which is %d off what it should see; monotonic: %t", seen, off, monotonic)
			}
		})
	}
}

func TestRefuses(t *testing.T) {
	if err := wrongclock.Copy(filepath.Join(t.TempDir(), "x"), "/etc/hostname"); err == nil || !strings.Contains(err.Error(), "Go program") {
		t.Errorf("a file that is no Go program: %v", err)
	}
	for _, args := range [][]string{nil, {"5"}, {"x", "/bin/true"}} {
		if code, err := wrongclock.Main(args); code != 2 || err == nil {
			t.Errorf("%q: code %d, %v", args, code, err)
		}
	}
}
