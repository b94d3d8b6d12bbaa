package main

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The binary of these tests is also the program: exec is called by it.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "exec" {
		main()
	}
	os.Exit(m.Run())
}

// Every package is in one phase, e2e in one of each part; packages of no run are named here.
func TestPlan(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "../../...").Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for p := range strings.FieldsSeq(string(out)) {
		if _, p, ok := strings.Cut(p, "/skerry/"); ok {
			all = append(all, p)
		}
	}
	got := map[string][]string{}
	for _, j := range plan("all", all, 2, lengths{}) {
		if len(j.phases) == 0 {
			t.Errorf("%s has no phases", j.name)
		}
		for _, p := range j.phases {
			for _, pkg := range p.packages {
				got[pkg] = append(got[pkg], strings.TrimSpace(p.shard))
			}
		}
	}
	for _, pkg := range all {
		want := []string{""}
		switch {
		case pkg == "tests/e2e":
			want = []string{"1/2", "2/2"}
		case pkg == "tests/bench" || pkg == "tests/release": // make bench and make release-test
			want = nil
		}
		if diff := cmp.Diff(want, got[pkg]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", pkg, diff)
		}
	}
	for _, pkg := range []string{
		"edge/internal/agents/vip", "edge/internal/agents/route", "edge/internal/agents/drain", "edge/internal/kernel/network/keepalived", "cloud/internal/core/publish",
		"cloud/internal/core/relay", "cloud/internal/trust/join", "cloud/internal/controllers/route", "cloud/internal/controllers/vip", "cloud/internal/controllers/reports",
	} {
		if !slices.Contains(all, pkg) || !realParts.MatchString(pkg) {
			t.Errorf("%s does not run with those that have a control plane or the kernel", pkg)
		}
	}
	for _, j := range plan("short", all, 2, lengths{}) {
		for _, p := range j.phases {
			if slices.ContainsFunc(p.packages, needsRoot.MatchString) {
				t.Errorf("short needs root for %v", p.packages)
			}
		}
	}
	if jobs := plan("all", []string{"beehive"}, 2, lengths{}); len(jobs) != 1 || len(jobs[0].phases) != 1 {
		t.Errorf("one package makes %v", jobs)
	}
}

// The longest job begins first, and one of unknown length before it.
func TestPlan_LongestFirst(t *testing.T) {
	known := lengths{Jobs: map[string]int{"site": 30, "apps": 70, "unit": 50}, Tests: map[string]map[string]int{"tests/e2e": {"TestA": 90, "TestB": 30}}}
	var got []string
	for _, j := range plan("all", []string{"beehive", "tests/apps", "tests/site", "tests/e2e", "tests/hostile"}, 2, known) {
		got = append(got, j.name)
	}
	if diff := cmp.Diff([]string{"hostile", "apps", "e2e 1/2", "e2e 2/2", "unit", "site"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Every job has a length, and the lengths follow the last run.
func TestLengths(t *testing.T) {
	known, err := readLengths(knownLengths)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, dir := range []string{"site", "apps", "incluster", "services", "hostile", "integration", "cluster", "campaign", "uml", "e2e"} {
		all = append(all, "tests/"+dir)
	}
	jobs := plan("all", append(all, "beehive", "edge/internal/agents/vip", "cloud/internal/core/relay"), 4, known)
	if len(jobs) != 16 {
		t.Errorf("%d jobs", len(jobs))
	}
	for _, j := range jobs {
		if n := known.of(j, 4); n < 10 || n > 7200 {
			t.Errorf("%s takes %d s", j.name, n)
		}
	}
	next := known.update(result{
		Jobs: map[string]seconds{"site": 12.7, "of one run": 5},
		Slow: []timedTest{{"tests/e2e", "TestA", 31.2}, {"tests/e2e", "TestA", 12}, {"tests/apps", "TestB", 20}},
	})
	want := lengths{Jobs: maps.Clone(known.Jobs), Tests: map[string]map[string]int{"tests/e2e": {"TestA": 31}}}
	want.Jobs["site"] = 12
	if diff := cmp.Diff(want, next); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// module makes a module of two packages, in which the tests of a file run.
func module(t *testing.T, test string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":              "module example.com/a/b\n\ngo 1.26\n",
		"good/good.go":        "package good // in " + dir + ": else it would be compiled already\n",
		"good/good_test.go":   "package good\n\nimport \"testing\"\n\nfunc TestGood(*testing.T) {}\n",
		"other/other.go":      "package other\n",
		"other/other_test.go": "package other\n\n" + test,
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
}

func TestRun(t *testing.T) {
	for name, c := range map[string]struct {
		test        string
		counts      Counts
		code        int
		secondTries []retry
		says        string
	}{
		"all is well": {
			test:   "import \"testing\"\n\nfunc TestOther(*testing.T) {}\n",
			counts: Counts{Passed: 2},
		},
		"one that fails twice": {
			test:   "import \"testing\"\n\nfunc TestOther(t *testing.T) { t.Error(\"oops\") }\n",
			counts: Counts{Passed: 1, Failed: 1},
			code:   1,
			says:   "oops",
		},
		"one that passes at its second try": {
			test: `import (
	"os"
	"testing"
)

func TestOther(t *testing.T) {
	if _, err := os.Stat("tried"); err != nil {
		os.WriteFile("tried", nil, 0o600)
		t.Error("oops")
	}
}

func TestFine(*testing.T) {}
`,
			counts:      Counts{Passed: 3},
			secondTries: []retry{{"other", []string{"TestOther"}}},
			says:        "== PASSED ONLY AT ITS SECOND TRY, in 1 of the last 1 runs: other TestOther\n",
		},
		"one that does not compile": {
			test:   "func TestOther(t *testing.T) {}\n",
			counts: Counts{Passed: 1, Failed: 1},
			code:   1,
			says:   "undefined: testing",
		},
	} {
		t.Run(name, func(t *testing.T) {
			module(t, c.test)
			var out bytes.Buffer
			o, err := optionsFrom("short", func(string) string { return "" })
			if err != nil {
				t.Fatal(err)
			}
			r, err := run(t.Context(), o, &out)
			if err != nil {
				t.Errorf("%v\n%s", err, out.String())
			}
			if diff := cmp.Diff(c.counts, r.Counts); diff != "" || r.exitCode() != c.code {
				t.Errorf("code %d, want %d; counts (-want +got):\n%s\n%s", r.exitCode(), c.code, diff, out.String())
			}
			if diff := cmp.Diff(c.secondTries, r.SecondTries); diff != "" {
				t.Errorf("second tries (-want +got):\n%s\n%s", diff, out.String())
			}
			if !strings.Contains(out.String(), c.says) {
				t.Errorf("it does not say %q:\n%s", c.says, out.String())
			}
			kept, err := readResult(resultFile)
			if err != nil || kept.Counts != r.Counts || kept.exitCode() != c.code {
				t.Errorf("kept is %+v, %v", kept, err)
			}
			if !slices.ContainsFunc(r.Rows, func(w row) bool {
				return w.Package == "good" && w.Tests.Wall > 0 && w.Link.Wall > 0 && w.Compile.Wall > 0 // a few ms of a processor count as 0
			}) {
				t.Errorf("no costs of good: %+v", r.Rows)
			}
		})
	}
}

// How often a test needed its second try is counted over the last ten runs.
func TestSecondTries_areCounted(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.MkdirAll(outDir, 0o755); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for i := range 12 {
		out.Reset()
		var r result
		if i != 11 {
			r.SecondTries = []retry{{"p", []string{"TestA"}}}
		}
		if i%2 == 0 {
			r.SecondTries = append(r.SecondTries, retry{Package: "q"})
		}
		if err := r.tellSecondTries(&out); err != nil {
			t.Fatal(err)
		}
		if i == 10 && out.String() != "== PASSED ONLY AT ITS SECOND TRY, in 10 of the last 10 runs: p TestA\n"+
			"== PASSED ONLY AT ITS SECOND TRY, in 5 of the last 10 runs: q\n== second tries: 2\n" {
			t.Error(out.String())
		}
	}
	if out.String() != "== second tries: 0\n" {
		t.Error(out.String())
	}
}

// Orphans of a program are waited for, and their time counted.
func TestExec_countsOrphans(t *testing.T) {
	dir := t.TempDir()
	costs := filepath.Join(dir, "costs")
	const burn = "i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done"
	for name, c := range map[string]struct {
		script string
		code   int
		burnt  bool
		starts map[string]int
		left   int
	}{
		"nothing":             {script: "exit 3", code: 3},
		"itself":              {script: burn, burnt: true},
		"a child":             {script: "sh -c '" + burn + "'", burnt: true},
		"an orphan":           {script: "(sh -c '" + burn + "' & echo $! >" + dir + "/pid); while [ -d /proc/$(cat " + dir + "/pid)/fd ] && ! grep -q '^State:.Z' /proc/$(cat " + dir + "/pid)/status 2>/dev/null; do sleep 0.1; done", burnt: true},
		"one that stays":      {script: "sleep 1000 >/dev/null 2>&1 & echo $! >" + dir + "/stays", left: 1},
		"what tests start":    {script: "echo trial >>$SKERRY_TEST_TALLY; echo trial >>$SKERRY_TEST_TALLY", starts: map[string]int{"trial": 2}},
		"one that is killed":  {script: "kill -9 $$", code: 128 + 9},
		"one that can't quit": {script: "trap 'exit 7' QUIT; kill -3 $PPID; while :; do sleep 0.1; done", code: 7},
	} {
		t.Run(name, func(t *testing.T) {
			os.Remove(costs)
			cmd := exec.CommandContext(t.Context(), os.Args[0], "exec", "/bin/sh", "-c", c.script)
			cmd.Env = append(os.Environ(), costsVariable+"="+costs)
			out, err := cmd.CombinedOutput()
			if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
				t.Fatal(err)
			}
			if got := cmd.ProcessState.ExitCode(); got != c.code {
				t.Errorf("code %d, want %d: %s", got, c.code, out)
			}
			rows, err := readCosts(costs, costs+"-none")
			if err != nil || len(rows) != 1 {
				t.Fatalf("%v, %v", rows, err)
			}
			got := rows[0].Tests
			if burnt := got.User+got.Kernel > 0.1; burnt != c.burnt {
				t.Errorf("it took %v s", got.User+got.Kernel)
			}
			if len(got.Starts) == 0 {
				got.Starts = nil
			}
			if diff := cmp.Diff(c.starts, got.Starts); diff != "" || got.Left != c.left {
				t.Errorf("left %d, want %d; starts (-want +got):\n%s", got.Left, c.left, diff)
			}
			if c.left > 0 {
				raw, err := os.ReadFile(dir + "/stays")
				pid, convErr := strconv.Atoi(strings.TrimSpace(string(raw)))
				if err := errors.Join(err, convErr); err != nil {
					t.Fatal(err)
				}
				p, err := os.FindProcess(pid)
				if err := errors.Join(err, p.Kill()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A test that hangs must leave the run time for a second try.
func TestPlan_TestsWithoutATrialEndSoon(t *testing.T) {
	r := &runner{}
	for _, j := range plan("all", []string{"beehive", "edge/internal/agents/vip", "tests/e2e"}, 1, lengths{}) {
		want := map[string]string{"unit": "20m", "real edge": "20m", "e2e 1/1": "75m"}[j.name]
		args := r.goTestCommand(j.phases[0], nil, "graph").Args
		if i := slices.Index(args, "-timeout"); want == "" || args[i+1] != want {
			t.Errorf("%s: %q, want %s", j.name, args, want)
		}
	}
}

// A further containerd has the tests of runtimeTests alone, and after those of the machine's own:
// both have the same networks.
func TestPlan_FurtherContainerd(t *testing.T) {
	jobs := plan("long", []string{"tests/e2e"}, 1, lengths{})
	if len(jobs) != 1 || len(jobs[0].phases) != 2 {
		t.Fatalf("%+v", jobs)
	}
	own, further := jobs[0].phases[0], jobs[0].phases[1]
	if own.runtime != "" || slices.Contains(selection("long", own), runtimeTests) {
		t.Errorf("the machine's own: %+v", own)
	}
	if got := selection("long", further); !slices.Equal(got, []string{"-run", runtimeTests}) {
		t.Errorf("its tests: %q", got)
	}
	if env := environment("long", further); !slices.Contains(env, runtimeVariable+"="+nextRuntime) || slices.Contains(env, longVariable+"=1") {
		t.Errorf("its environment: %q", env)
	}
}
