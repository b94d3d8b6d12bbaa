package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestForBinary(t *testing.T) {
	for _, c := range []struct {
		flags, want string // without want there is no translation
	}{
		{"-count=1 -v -run X -skip ^(A|B)$", "-test.count=1 -test.v -test.run=X -test.skip=^(A|B)$"},
		{"--short", "-test.short"},
		{"-race", ""},
		{"-run", ""},
		{"X", ""},
	} {
		got, ok := forBinary(strings.Fields(c.flags))
		if ok != (c.want != "") || strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, %v", c.flags, got, ok)
		}
	}
}

// Parts share one binary. Failed tests are run once more as a whole, since a part of few tests may
// be empty, and a second try that omits one of them has failed.
func TestShards(t *testing.T) {
	const fails = "if os.Getenv(\"SKERRY_E2E_SHARD\") == \"2/2\" { t.Error(\"oops\") }"
	for name, c := range map[string]struct {
		test   string
		counts Counts
		failed bool
		tries  []retry
	}{
		"all is well":                {"", Counts{Passed: 4}, false, nil},
		"passes at its second try":   {fails, Counts{Passed: 4}, false, []retry{{"other", []string{"TestOther"}}}},
		"does not run at the second": {fails + "; if os.Getenv(\"SKERRY_E2E_SHARD\") == \"1/1\" { t.Skip(\"\") }", Counts{Passed: 3, Failed: 1, Skipped: 1}, true, nil},
		"fails at both":              {"if os.Getenv(\"SKERRY_E2E_SHARD\") != \"1/2\" { t.Error(\"oops\") }", Counts{Passed: 3, Failed: 1}, true, nil},
		"can't be compiled":          {"oops", Counts{}, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			module(t, "import (\n\t\"os\"\n\t\"testing\"\n)\n\nvar _ = os.Args\n\nfunc TestOther(t *testing.T) {\n"+c.test+"\n}\n\nfunc TestFine(*testing.T) {}\n")
			if err := os.MkdirAll(outDir, 0o755); err != nil {
				t.Fatal(err)
			}
			self, err := filepath.Abs(os.Args[0])
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			r := &runner{out: &out, module: "example.com/a/b", self: self, temp: t.TempDir()}
			r.shards = &shards{module: r.module, self: self, temp: r.temp}
			one := phase{name: "other 1/2", packages: []string{"other"}, parallel: 1, shard: "1/2"}
			two := phase{name: "other 2/2", packages: []string{"other"}, parallel: 1, shard: "2/2"}
			r.inLanes(t.Context(), []job{{one.name, []phase{one}}, {two.name, []phase{two}}}, 2)
			r.secondTries(t.Context())
			if diff := cmp.Diff(c.counts, r.result.Counts); diff != "" || r.failed != c.failed {
				t.Errorf("failed: %v; counts (-want +got):\n%s\n%s", r.failed, diff, out.String())
			}
			if diff := cmp.Diff(c.tries, r.result.SecondTries); diff != "" {
				t.Errorf("second tries (-want +got):\n%s\n%s", diff, out.String())
			}
		})
	}
}
