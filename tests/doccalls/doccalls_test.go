package doccalls

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

func TestIn(t *testing.T) {
	fence := "```"
	page := "Text with `tool prose`.\n\n| a | b |\n| `tool one --flag` | see `other x`, then `tool two`, not `tool ... x` |\n" + fence + "\n" +
		"tool three 'a | b' \\\n  --more # comment\nother | tool four >out && tool five $(tool six; x)\n" + fence + "\n" + fence + "text\ntool shown\n" + fence + "\n"
	got, err := in("p.md", page, "tool")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([][]string{{"three", "a | b", "--more"}, {"four"}, {"five"}, {"six"}, {"one", "--flag"}, {"two"}}, got); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if got := callsOf("kubectl skerry status -w; kubectl get x", "kubectl skerry"); len(got) != 1 || len(got[0]) != 2 {
		t.Errorf("%q", got)
	}
}

func TestBlocks(t *testing.T) {
	fence := "```"
	text := "# Title\n" + fence + "\nkubectl get nodes   # all\n\n# only a comment\ntool one \\\n    --flag\ncat <<X\na: b\nX\nkubectl get x -o 'y=#'\n" + fence + "\n" +
		"Text.\n<!-- not run: it reboots the machine -->\n   " + fence + "sh\n   $ edgecore status\n   NAME   LINK\n   ...\n   " + fence + "\n<!-- part of Pod -->\n" + fence + "yaml\nspec: {}\n" + fence + "\n"
	got, err := blocksOf("p.md", text)
	if err != nil || len(got) != 3 {
		t.Fatalf("%d blocks: %v", len(got), err)
	}
	if diff := cmp.Diff([]Command{{Line: "kubectl get nodes"}, {Line: "tool one \\\n    --flag"}, {Line: "cat <<X\na: b\nX"}, {Line: "kubectl get x -o 'y=#'"}}, got[0].Commands()); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
	if b := got[1]; b.Name() != "p.md:15" || b.Reason != "it reboots the machine" || !b.Shell() || !b.OnDevice() || got[0].OnDevice() {
		t.Errorf("%+v", b)
	}
	c := got[1].Commands()[0]
	if c.Line != "edgecore status" || c.Differs("note\nNAME LINK\na Up") != nil || c.Differs("NAME LINK AGE\n") == nil || c.Differs("no table") == nil {
		t.Errorf("%+v", c)
	}
	if b := got[2]; b.Part != "Pod" || b.Shell() {
		t.Errorf("%+v", b)
	}
	if _, err := blocksOf("p.md", fence+"\nx"); err == nil {
		t.Error("a block without an end is taken")
	}
}

// TestOperate_15_EachBlockHasATestOrAReason: of the documents' blocks each is text, source, an
// object or a setting, or commands that a test runs; any other has a reason, and tests that a
// reason names exist. Those that run blocks are in tests/integration/docs and, where they need a
// device (OnDevice), in tests/e2e.
func TestOperate_15_EachBlockHasATestOrAReason(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	blocks, err := Blocks(root)
	if err != nil {
		t.Fatal(err)
	}
	tests := testNames(t, root)
	count := map[string]int{}
	for _, b := range blocks {
		kind := b.Language
		for _, complaint := range faults(b, tests) {
			t.Error(complaint)
		}
		if b.Reason != "" {
			kind = "not run"
		}
		count[kind]++
	}
	t.Log(count)
	if count[""] < 50 || count["yaml"] < 15 {
		t.Errorf("%v: are the blocks found?", count)
	}
}

// faults are why a block may not be as it is.
func faults(b Block, tests map[string]bool) (all []string) {
	complain := func(format string, args ...any) { all = append(all, b.Name()+": "+fmt.Sprintf(format, args...)) }
	switch b.Language {
	case "", "sh", "yaml":
	case "go":
		if strings.HasPrefix(b.Page, "docs/") && !strings.HasPrefix(b.Page, "docs/dev/") {
			complain("source in a page for users")
		}
	case "text":
		for _, line := range b.Lines {
			if ours.MatchString(line) {
				complain("a command in a block of text: %s", line)
			}
		}
	default:
		complain("the language %q is unknown", b.Language)
	}
	if b.Reason != "" && len(strings.Fields(b.Reason)) < 3 {
		complain("the reason %q says too little", b.Reason)
	}
	for _, name := range testName.FindAllString(b.Reason, -1) {
		if !tests[name] {
			complain("there is no test %s", name)
		}
	}
	if b.Shell() && b.Reason == "" && len(b.Commands()) == 0 {
		complain("no command is in it: is it text?")
	}
	return all
}

var testName = regexp.MustCompile(`\bTest[A-Z]\w+`)

// testNames are the names of the tests in the repository.
func testNames(t *testing.T, root string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			if err == nil && d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
			return nil //nolint:nilerr // another test may remove a trial's folder
		}
		raw, err := os.ReadFile(path)
		for _, m := range declared.FindAllStringSubmatch(string(raw), -1) {
			names[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// A block that is new and has neither is a fault, and so are a command that hides in a text, and a
// reason that names a test which is gone.
func TestFaults(t *testing.T) {
	for name, b := range map[string]Block{
		"command in a text": {Language: "text", Lines: []string{"kubectl get pods"}},
		"language":          {Language: "bash"},
		"source":            {Page: "docs/x.md", Language: "go"},
		"short reason":      {Reason: "no"},
		"gone":              {Reason: "it is run by TestShip_99_Gone", Lines: []string{"make x"}},
		"output":            {Lines: []string{"# nothing"}},
	} {
		if len(faults(b, nil)) == 0 {
			t.Errorf("%s: no fault", name)
		}
	}
	if f := faults(Block{Lines: []string{"kubectl get pods"}}, nil); len(f) > 0 {
		t.Errorf("%q", f)
	}
}

// A remedy that names a command or a flag that is not there is found; a sentence about the program
// is not.
func TestNamedIn(t *testing.T) {
	run := func(*cobra.Command, []string) {}
	tool := &cobra.Command{Use: "tool"}
	status := &cobra.Command{Use: "status", Run: run}
	status.Flags().Bool("wide", false, "")
	tool.AddCommand(status)
	for text, good := range map[string]bool{
		"tool runs": true,
		"on the device: tool status, then tool runs": true,
		"a tool that is not there":                   true,
		"on the device: tool state":                  false,
		"`tool status --wide` shows it":              true,
		"then tool state":                            false,
		"`tool status --long` shows it":              false,
		"not a mytool state or /usr/bin/tool state":  true,
	} {
		if _, err := namedIn(tool, "tool", text, []string{"runs"}); (err == nil) != good {
			t.Errorf("%q: %v", text, err)
		}
	}
}
