package suite

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Every test is in one part, and in no other.
func TestParts(t *testing.T) {
	list := exec.CommandContext(t.Context(), os.Args[0], "-test.list=.")
	list.Env = append(os.Environ(), inner+"=none")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Fields(string(out))
	slices.Sort(all)
	for args, want := range map[string][]string{
		"-test.v":                     all,
		"-test.run=TestParts":         {"TestParts"},
		"-test.run=TestParts/a/b":     {"TestParts"},
		"-test.run=NoTestHasThisName": nil,
	} {
		const of = 3
		var chosen []string
		for n := 1; n <= of; n++ {
			got, err := choose(t.Context(), []string{"-test.timeout=1m", args}, n, of)
			if err != nil {
				t.Fatal(err)
			}
			if got == nil {
				continue
			}
			if !slices.Contains(got, "-test.timeout=1m") {
				t.Errorf("%s: part %d lost its other arguments: %v", args, n, got)
			}
			pattern, below, _ := strings.Cut(strings.TrimPrefix(got[len(got)-1], "-test.run="), "/")
			if below != "" != strings.Contains(args, "/") {
				t.Errorf("%s: part %d runs the subtests %q", args, n, below)
			}
			for _, name := range all {
				if regexp.MustCompile(pattern).MatchString(name) {
					chosen = append(chosen, name)
				}
			}
		}
		slices.Sort(chosen)
		if diff := cmp.Diff(want, chosen); diff != "" {
			t.Errorf("%s (-want +chosen):\n%s", args, diff)
		}
	}
}

// Parts take the same time as nearly as the lengths allow, also where most are unknown.
func TestDivide(t *testing.T) {
	got := divide([]string{"A", "B", "Long", "C", "Longer", "D", "E"}, map[string]int{"Long": 30, "Longer": 50}, 2)
	if diff := cmp.Diff([][]string{{"Longer", "C", "E"}, {"Long", "A", "B", "D"}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
