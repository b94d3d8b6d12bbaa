// Package doccalls checks the calls of a program in the pages for users: each is one that the
// program takes.
//
// It owns how a call is found: a line of a code block, or a span of code in a table, that begins
// with the program's name. It refuses to run anything. Check is called by one test.
package doccalls

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var (
	comment = regexp.MustCompile(`\s+#.*|[|>&].*`)
	span    = regexp.MustCompile("`([^`\n]+)`")
)

// Check reports each call of the program that command() would not take. least is how many there
// are at least.
func Check(t *testing.T, command func() *cobra.Command, program string, least int, pages ...string) {
	t.Helper()
	calls := 0
	for _, page := range pages {
		raw, err := os.ReadFile(filepath.Join("../../..", page))
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range in(string(raw), program) {
			calls++
			c, args, err := command().Find(strings.Fields(comment.ReplaceAllString(call, "")))
			if err == nil {
				err = c.ParseFlags(args)
			}
			if err == nil && len(args) > 0 { // else it may be named only
				err = c.ValidateArgs(c.Flags().Args())
			}
			if err != nil || !c.Runnable() || c == c.Root() {
				t.Errorf("%s: %s %s: %v", page, program, strings.TrimSpace(call), err)
			}
		}
	}
	if calls < least {
		t.Errorf("%d calls of %s were found: are they marked as code any more?", calls, program)
	}
}

// in are the calls in a page, without the program's name.
func in(page, program string) (calls []string) {
	for i, block := range strings.Split(page, "```") {
		for line := range strings.Lines(block) {
			if i%2 == 1 {
				if rest, ours := strings.CutPrefix(line, program+" "); ours {
					calls = append(calls, rest)
				}
				continue
			}
			if !strings.HasPrefix(line, "| ") {
				continue
			}
			for _, found := range span.FindAllStringSubmatch(line, -1) {
				if rest, ours := strings.CutPrefix(found[1], program+" "); ours && !strings.Contains(rest, "...") {
					calls = append(calls, rest)
				}
			}
		}
	}
	return calls
}
