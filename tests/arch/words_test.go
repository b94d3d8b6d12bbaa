package arch_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// A wordLimit bounds how often comments have words that others would not search for. The
// numbers are a ratchet: they were measured, go down with each package that is worked over, and
// never up. The goal is that of CONTRIBUTING.md, "Words"; the limits are below it by now.
type wordLimit struct {
	name    string
	pattern *regexp.Regexp
	limit   float64 // per 1,000 words of comments
	goal    float64
}

var wordLimits = []wordLimit{
	{"what", regexp.MustCompile(`(?i)\bwhat\b`), 0.5, 2},
	{"say, says, said", regexp.MustCompile(`(?i)\b(say|says|said)\b`), 0.2, 0.5},
	{"none, nothing", regexp.MustCompile(`(?i)\b(none|nothing)\b`), 0.6, 2},
	{"beside, bears, whom, lies, meanwhile, led to, goes on", regexp.MustCompile(`(?i)\b(beside|bears|whom|lies|meanwhile|led to|goes on)\b`), 0.1, 0.1},
}

// TestWords: comments name things by the words that a Kubernetes engineer would grep for.
func TestWords(t *testing.T) {
	var comments strings.Builder
	for _, p := range source(t).packs {
		for _, f := range p.files {
			if f.generated || strings.HasSuffix(f.path, "words_test.go") {
				continue
			}
			for _, group := range f.syntax.Comments {
				comments.WriteString(group.Text())
			}
		}
	}
	for _, complaint := range overWordLimits(comments.String(), wordLimits) {
		t.Error(complaint)
	}
	words := len(strings.Fields(comments.String()))
	for _, l := range wordLimits {
		n := len(l.pattern.FindAllString(comments.String(), -1))
		t.Logf("%s: %d, %.2f in 1,000 of %d words", l.name, n, float64(n)/float64(words)*1000, words)
	}
}

func overWordLimits(comments string, limits []wordLimit) (complaints []string) {
	words := len(strings.Fields(comments))
	for _, l := range limits {
		found := len(l.pattern.FindAllString(comments, -1))
		if rate := float64(found) / float64(words) * 1000; rate > l.limit {
			complaints = append(complaints, fmt.Sprintf("%s: %d in %d words of comments are %.2f of 1,000; at most %.2f, and the goal is %.1f", l.name, found, words, rate, l.limit, l.goal))
		}
	}
	return complaints
}

func TestWords_findsWhatItMust(t *testing.T) {
	limits := []wordLimit{{"what", regexp.MustCompile(`(?i)\bwhat\b`), 100, 2}}
	if c := overWordLimits("What is this? Somewhat long, as ten words must be here now.", limits); len(c) != 0 {
		t.Errorf("one in twelve is %v", c)
	}
	if c := overWordLimits("What is what?", limits); len(c) != 1 {
		t.Errorf("two of three are %v", c)
	}
}
