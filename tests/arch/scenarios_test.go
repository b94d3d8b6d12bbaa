package arch_test

import (
	"fmt"
	"go/ast"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// scenarioPages is where the numbered scenarios stand, one page an area.
const scenarioPages = "docs/dev/scenarios"

var (
	// numbered finds an area and its numbers in the name of a test. A name may have several.
	numbered = regexp.MustCompile(`(?:^Test|_)([A-Z][A-Za-z]*)((?:_\d\d)+)(?:_|$)`)
	// quoted finds text in backquotes.
	quoted = regexp.MustCompile("`([^`]+)`")
)

// A place is one test in one row of one page.
type place struct{ page, number, dir, test string }

func (p place) String() string {
	return fmt.Sprintf("%s, number %s: `%s` `%s`", p.page, p.number, p.dir, p.test)
}

// inNames are the places that names of tests ask for.
func inNames(packs []*sourcePack) (places []place, faults []string) {
	for _, p := range packs {
		for _, f := range p.files {
			for _, d := range f.syntax.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || !f.test || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") {
					continue
				}
				name, rest := fn.Name.Name, fn.Name.Name
				for {
					m := numbered.FindStringSubmatchIndex(rest)
					if m == nil {
						break
					}
					page := scenarioPages + "/" + strings.ToLower(rest[m[2]:m[3]]) + ".md"
					for number := range strings.SplitSeq(rest[m[4]+1:m[5]], "_") {
						places = append(places, place{page, number, p.dir, name})
					}
					if rest = rest[m[5]:]; rest == "" {
						faults = append(faults, f.path+": "+name+" is a number alone: say in the name what it shows")
					}
				}
			}
		}
	}
	return places, faults
}

// onPage are the places that a page has.
func onPage(page, text string) (places []place, faults []string) {
	last := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "| number |") || strings.HasPrefix(line, "| --- |") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if len(cells) != 3 {
			faults = append(faults, fmt.Sprintf("%s: a row has %d columns, and not number, sentence and tests: %s", page, len(cells), line))
			continue
		}
		number, sentence := strings.TrimSpace(cells[0]), strings.TrimSpace(cells[1])
		if number <= last || len(number) != 2 {
			faults = append(faults, fmt.Sprintf("%s: number %s stands behind %s: two digits, each once, in order", page, number, last))
		}
		last = number
		if !strings.HasSuffix(sentence, ".") && !strings.HasSuffix(sentence, ".)") {
			faults = append(faults, fmt.Sprintf("%s: number %s has no sentence", page, number))
		}
		dir, tests := "", 0
		for _, m := range quoted.FindAllStringSubmatch(cells[2], -1) {
			if !strings.HasPrefix(m[1], "Test") {
				dir = m[1]
				continue
			}
			tests++
			places = append(places, place{page, number, dir, m[1]})
		}
		if tests == 0 {
			faults = append(faults, fmt.Sprintf("%s: number %s has no test", page, number))
		}
	}
	return places, faults
}

// apart is where the names of tests and the pages, by their paths, do not agree.
func apart(packs []*sourcePack, pages map[string]string) []string {
	asked, faults := inNames(packs)
	var has []place
	for _, page := range slices.Sorted(maps.Keys(pages)) {
		places, wrong := onPage(page, pages[page])
		has, faults = append(has, places...), append(faults, wrong...)
	}
	for _, p := range asked {
		if !slices.Contains(has, p) {
			faults = append(faults, "missing in "+p.String())
		}
	}
	for _, p := range has {
		if !slices.Contains(asked, p) {
			faults = append(faults, "no such test, or not of this number: "+p.String())
		}
	}
	return faults
}

// The pages of scenarios and the tests with their numbers agree, both ways.
func TestScenarios(t *testing.T) {
	tree, err := load()
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]string{}
	for _, f := range tree.files {
		if path.Dir(f) != scenarioPages || path.Base(f) == "README.md" {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(tree.root, f))
		if err != nil {
			t.Fatal(err)
		}
		pages[f] = string(raw)
	}
	if len(pages) == 0 {
		t.Fatalf("%s has no pages", scenarioPages)
	}
	for _, fault := range apart(tree.packs, pages) {
		t.Error(fault)
	}
	if t.Failed() {
		t.Logf("%s/README.md says how a scenario is added", scenarioPages)
	}
}

func TestScenarios_findWhatTheyMust(t *testing.T) {
	const page = scenarioPages + "/area.md"
	row := func(number, sentence, tests string) string {
		return fmt.Sprintf("| number | sentence | tests |\n| --- | --- | --- |\n| %s | %s | %s |\n", number, sentence, tests)
	}
	whole := row("01", "It holds.", "`a/b` `TestArea_01_Holds`")
	for name, c := range map[string]struct {
		test, page string
		want       []string
	}{
		"agree":           {"TestArea_01_Holds", whole, nil},
		"no scenario":     {"TestOther", "", nil},
		"two numbers":     {"TestArea_01_Other_02_Holds", row("01", "It holds.", "`a/b` `TestArea_01_Other_02_Holds`"), []string{"missing in docs/dev/scenarios/other.md, number 02: `a/b` `TestArea_01_Other_02_Holds`"}},
		"not on the page": {"TestArea_02_More", whole, []string{"missing in " + page + ", number 02: `a/b` `TestArea_02_More`", "no such test, or not of this number: " + page + ", number 01: `a/b` `TestArea_01_Holds`"}},
		"in another package": {
			"TestArea_01_Holds", row("01", "It holds.", "`a` `TestArea_01_Holds`"),
			[]string{"missing in " + page + ", number 01: `a/b` `TestArea_01_Holds`", "no such test, or not of this number: " + page + ", number 01: `a` `TestArea_01_Holds`"},
		},
		"a number alone":  {"TestArea_01", row("01", "It holds.", "`a/b` `TestArea_01`"), []string{"a/b/x_test.go: TestArea_01 is a number alone: say in the name what it shows"}},
		"no sentence":     {"TestArea_01_Holds", row("01", "", "`a/b` `TestArea_01_Holds`"), []string{page + ": number 01 has no sentence"}},
		"no test":         {"TestOther", row("01", "It holds.", "none"), []string{page + ": number 01 has no test"}},
		"a number twice":  {"TestArea_01_Holds", whole + whole, []string{page + ": number 01 stands behind 01: two digits, each once, in order"}},
		"a row too short": {"TestOther", "| 01 | It holds. |\n", []string{page + ": a row has 2 columns, and not number, sentence and tests: | 01 | It holds. |"}},
	} {
		t.Run(name, func(t *testing.T) {
			packs := []*sourcePack{pack(t, "a/b/x_test.go", "package b_test\nfunc "+c.test+"() {}\n")}
			if diff := cmp.Diff(c.want, apart(packs, map[string]string{page: c.page})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
