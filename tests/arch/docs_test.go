package arch_test

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

const (
	readmeWords   = 700
	decisionWords = 350
)

// TestDocs: pages refer to pages, headings and files that exist; the README and decisions are
// short.
func TestDocs(t *testing.T) {
	tree := source(t)
	pages := map[string]string{}
	exists := map[string]bool{}
	for _, f := range tree.files {
		for dir := f; dir != "."; dir = path.Dir(dir) {
			exists[dir] = true
		}
		if strings.HasSuffix(f, ".md") && !strings.Contains("/"+f, "/testdata/") {
			raw, err := os.ReadFile(filepath.Join(tree.root, f))
			if err != nil {
				t.Fatal(err)
			}
			pages[f] = string(raw)
		}
	}
	for _, complaint := range brokenLinks(pages, exists) {
		t.Error(complaint)
	}
	if n := len(strings.Fields(mdComment.ReplaceAllString(pages["README.md"], ""))); n > readmeWords {
		t.Errorf("README.md: %d words, at most %d: move the rest to docs/", n, readmeWords)
	}
	for f, text := range pages {
		if path.Dir(f) != "docs/dev/decisions" || path.Base(f) == "README.md" {
			continue
		}
		if n := len(strings.Fields(text)); n > decisionWords {
			t.Errorf("%s: %d words, at most %d: keep the decision, its reason and figures, and move facts to docs/dev", f, n, decisionWords)
		}
		if !decisionStatus.MatchString(text) {
			t.Errorf("%s: its second line is no date and status, as in the other decisions", f)
		}
	}
}

var decisionStatus = regexp.MustCompile(`^# .*\nDate: \d{4}-\d\d-\d\d\. Status: (accepted|superseded)\.`)

var (
	mdComment = regexp.MustCompile(`<!--.*?-->`)
	mdLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	mdHeading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	mdCode    = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
)

// brokenLinks returns the relative links of pages that lead nowhere.
func brokenLinks(pages map[string]string, exists map[string]bool) (complaints []string) {
	for page, text := range pages {
		for _, m := range mdLink.FindAllStringSubmatch(mdCode.ReplaceAllString(text, ""), -1) {
			link := m[1]
			if strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") {
				continue
			}
			file, anchor, _ := strings.Cut(link, "#")
			target := page
			if file != "" {
				target = path.Join(path.Dir(page), file)
			}
			if !exists[target] {
				complaints = append(complaints, fmt.Sprintf("%s: (%s) leads to no file", page, link))
				continue
			}
			if to, ok := pages[target]; anchor != "" && ok && !anchors(to)[anchor] {
				complaints = append(complaints, fmt.Sprintf("%s: (%s) leads to no heading", page, link))
			}
		}
	}
	return complaints
}

// anchors are those of a page's headings, as GitHub forms them: small letters, spaces become
// hyphens, punctuation goes.
func anchors(page string) map[string]bool {
	found := map[string]bool{}
	for _, m := range mdHeading.FindAllStringSubmatch(page, -1) {
		heading := regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(m[1], "$1")
		found[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, heading)] = true
	}
	return found
}

func TestDocs_findWhatTheyMust(t *testing.T) {
	pages := map[string]string{
		"README.md":   "# A (b), c\n[one](docs/one.md#two-parts) [here](#a-b-c) [web](https://example.com) `[x](no.md)`",
		"docs/one.md": "## Two parts\n[gone](two.md) [no heading](#three) [up](../README.md)",
	}
	exists := map[string]bool{"README.md": true, "docs": true, "docs/one.md": true}
	complaints := brokenLinks(pages, exists)
	if len(complaints) != 2 || !strings.Contains(strings.Join(complaints, " "), "(two.md)") || !strings.Contains(strings.Join(complaints, " "), "(#three)") {
		t.Errorf("found: %q", complaints)
	}
}
