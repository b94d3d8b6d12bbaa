package hook_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/edge/internal/kernel/hook"
)

func TestRun(t *testing.T) {
	h := hook.New(map[string]string{
		"good": `echo "$IMAGE"; echo aside >&2`,
		"bad":  "echo why; exit 3",
		"long": "head -c 10000 /dev/zero | tr '\\0' x; echo END",
		"none": "",
	})
	tests := map[string]struct {
		output string
		code   int
		fails  bool
	}{
		"good": {"v2\naside\n", 0, false},
		"bad":  {"why\n", 3, true},
		"long": {strings.Repeat("x", 4092) + "END\n", 0, false},
	}
	for operation, want := range tests {
		t.Run(operation, func(t *testing.T) {
			output, code, err := h.Run(t.Context(), operation, "IMAGE=v2")
			if output != want.output || code != want.code || (err != nil) != want.fails {
				t.Errorf("got %q, %d, %v; want %q, %d, an error: %v", output, code, err, want.output, want.code, want.fails)
			}
		})
	}
	for _, operation := range []string{"none", "unknown"} {
		if _, _, err := h.Run(t.Context(), operation); !errors.Is(err, hook.ErrNoHook) {
			t.Errorf("%s: got %v, want ErrNoHook", operation, err)
		}
	}
}

func TestEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, _, err := hook.New(map[string]string{"slow": "exec sleep 600"}).Run(ctx, "slow")
		done <- err
	}()
	cancel()
	if err := <-done; err == nil {
		t.Error("a hook that was ended is no success")
	}
}
