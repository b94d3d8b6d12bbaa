// Package terminal keeps text of others from controlling the terminal that shows it: a pod's answer
// to a probe is in an Event, and an Event in the output of a command.
//
// It owns which runes a terminal may act on: control characters, of C1 too, and those that change
// the direction of text (https://www.unicode.org/reports/tr9/, 2). It has no state but a Writer's,
// which one goroutine uses.
package terminal

import (
	"io"
	"strings"
)

// Controls reports whether a rune controls a terminal; of the whitespace only the space and the
// no-break space do not.
func Controls(r rune) bool {
	return r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' || r >= '\u202a' && r <= '\u202e' || r >= '\u2066' && r <= '\u2069'
}

// Writer returns a writer that passes text on without runes that control a terminal, except for
// newlines and tabs, and without invalid UTF-8. No write may end within a rune.
func Writer(w io.Writer) io.Writer { return writer{w} }

type writer struct{ to io.Writer }

func (w writer) Write(p []byte) (int, error) {
	text := strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && Controls(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(p), ""))
	if _, err := io.WriteString(w.to, text); err != nil {
		return 0, err
	}
	return len(p), nil
}
