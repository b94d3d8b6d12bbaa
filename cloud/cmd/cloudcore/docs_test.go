package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestDocumentedCommands: each call of cloudcore in the pages for users is one that it takes.
func TestDocumentedCommands(t *testing.T) {
	comment := regexp.MustCompile(`\s+#.*|[|>].*`)
	calls := 0
	for _, page := range []string{"../../../README.md", "../../../docs/install.md", "../../../docs/maintenance.md"} {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for i, block := range strings.Split(string(raw), "```") {
			for line := range strings.Lines(block) {
				rest, ours := strings.CutPrefix(line, "cloudcore ")
				if i%2 == 0 || !ours {
					continue
				}
				calls++
				c, args, err := command().Find(strings.Fields(comment.ReplaceAllString(rest, "")))
				if err == nil {
					err = c.ParseFlags(args)
				}
				if err == nil {
					err = c.ValidateArgs(c.Flags().Args())
				}
				if err != nil || !c.Runnable() || c == c.Root() {
					t.Errorf("%s: %q: %v", page, strings.TrimSpace(line), err)
				}
			}
		}
	}
	if calls < 6 {
		t.Errorf("%d calls were found: are they marked as code any more?", calls)
	}
}
