package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// make env gives a plain shell the flags that make itself compiles with: others would
// compile Kubernetes once more.
func TestMakeEnv(t *testing.T) {
	for name, own := range map[string]string{"a plain shell": "", "flags of one's own": "-tags=other -mod=mod -trimpath"} {
		t.Run(name, func(t *testing.T) {
			const show = `echo "$CGO_ENABLED"; echo "$GOFLAGS"; echo "$TEST_LDFLAGS"`
			run := func(program string, args ...string) string {
				t.Helper()
				cmd := exec.CommandContext(t.Context(), program, args...)
				cmd.Dir = "../.."
				cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "GOFLAGS=" + own}
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%s: %v\n%s", program, err, out)
				}
				return string(out)
			}
			want := run("make", "--silent", "--eval", "show: ; @"+strings.ReplaceAll(show, "$", "$$"), "show")
			got := run("bash", "-c", `eval "$(make env)"; `+show)
			if diff := cmp.Diff(want, got); diff != "" || !strings.Contains(got, "-trimpath -tags=grpcnotrace -gcflags=all=-dwarf=false") {
				t.Errorf("(-make +shell):\n%s", diff)
			}
		})
	}
}
