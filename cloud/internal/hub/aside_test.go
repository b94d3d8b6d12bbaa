package hub_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/cloud/internal/hub"
)

func TestAside(t *testing.T) {
	want := errors.New("no")
	if err := hub.Aside(func() error { return want }); err != want {
		t.Errorf("got %v", err)
	}
	for name, c := range map[string]struct {
		do   func() error
		says string
	}{
		"a panic":                 {func() error { panic("bad luck") }, "bad luck"},
		"where it was":            {func() error { panic("bad luck") }, "aside_test.go"},
		"an end of the goroutine": {func() error { runtime.Goexit(); return nil }, "was ended"},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), c.says) {
					t.Errorf("the panic is %v, want %q", p, c.says)
				}
			}()
			_ = hub.Aside(c.do)
		})
	}
}
