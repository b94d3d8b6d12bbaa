package terminal_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/common/terminal"
)

func TestWriter(t *testing.T) {
	var out strings.Builder
	n, err := fmt.Fprint(terminal.Writer(&out), "a\tb\n\x1b[2J\x1b]0;title\a\r\u009b1m\u202ecba\u2028 \u00a0é\xff\x7f.")
	if want := "a\tb\n[2J]0;title1mcba \u00a0é."; err != nil || n == 0 || out.String() != want {
		t.Errorf("%d, %v: %q, want %q", n, err, out.String(), want)
	}
}
