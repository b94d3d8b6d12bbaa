package arch_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// bareErrors is how many error messages of logs have the failure alone: a ratchet, which only goes
// down.
const bareErrors = 21

var (
	logsError = regexp.MustCompile(`(?:log|logger|l\.log|Background\(\)|FromContext\([\w.()]+\))\.Error\([\w.]+, "((?:[^"\\]|\\.)*)"`)
	clause    = regexp.MustCompile(`[,;:] `)
)

// TestErrorsNameTheConsequence: an error in a log names, after the failure, what follows from it or
// what to do.
func TestErrorsNameTheConsequence(t *testing.T) {
	tree := source(t)
	all := 0
	var bare []string
	for _, f := range tree.files {
		if !strings.HasSuffix(f, ".go") || strings.HasSuffix(f, "_test.go") || !strings.HasPrefix(f, "edge/") && !strings.HasPrefix(f, "cloud/") && !strings.HasPrefix(f, "common/") && !strings.HasPrefix(f, "beehive/") {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(tree.root, f))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range logsError.FindAllStringSubmatch(string(raw), -1) {
			if all++; !clause.MatchString(m[1]) {
				bare = append(bare, f+": "+m[1])
			}
		}
	}
	if all < 100 {
		t.Errorf("%d errors are found: are they logged otherwise?", all)
	}
	if len(bare) > bareErrors {
		t.Errorf("%d of %d errors have no consequence and no remedy, at most %d may (\"Failed to save the state, retrying\"):\n%s", len(bare), all, bareErrors, strings.Join(bare, "\n"))
	}
}
