package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSummary(t *testing.T) {
	for name, c := range map[string]struct {
		in   string
		want Counts
		out  string
	}{
		"one that passes": {
			in: `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:1: hello\n"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0}
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.004s\n"}
{"Action":"pass","Package":"p","Elapsed":0.004}
`,
			want: Counts{Passed: 1},
			out:  "ok  \tp\t0.004s\n",
		},
		"one that fails, one that is skipped": {
			in: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"run","Package":"p","Test":"TestA/x"}
{"Action":"output","Package":"p","Test":"TestA/x","Output":"    a_test.go:1: got 1\n"}
{"Action":"output","Package":"p","Test":"TestA/x","Output":"    --- FAIL: TestA/x (0.00s)\n"}
{"Action":"fail","Package":"p","Test":"TestA/x","Elapsed":0}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- FAIL: TestA (0.00s)\n"}
{"Action":"fail","Package":"p","Test":"TestA","Elapsed":0}
{"Action":"run","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    a_test.go:9: needs root\n"}
{"Action":"skip","Package":"p","Test":"TestB","Elapsed":0}
{"Action":"output","Package":"p","Output":"FAIL\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.004s\n"}
{"Action":"fail","Package":"p","Elapsed":0.004}
`,
			want: Counts{Failed: 2, Skipped: 1},
			out: "    a_test.go:1: got 1\n    --- FAIL: TestA/x (0.00s)\n--- FAIL: TestA (0.00s)\n    a_test.go:9: needs root\n" +
				"FAIL\nFAIL\tp\t0.004s\n",
		},
		"one that panics": {
			in: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"panic: oops\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.004s\n"}
{"Action":"fail","Package":"p","Elapsed":0.004}
`,
			want: Counts{Failed: 1},
			out:  "panic: oops\nFAIL\tp\t0.004s\n",
		},
		"one that does not compile": {
			in: `{"ImportPath":"p [p.test]","Action":"build-output","Output":"# p\n"}
{"ImportPath":"p [p.test]","Action":"build-output","Output":"p/a.go:1: undefined: x\n"}
{"ImportPath":"p [p.test]","Action":"build-fail"}
{"Action":"start","Package":"p"}
{"Action":"output","Package":"p","Output":"FAIL\tp [build failed]\n"}
{"Action":"fail","Package":"p","Elapsed":0,"FailedBuild":"p [p.test]"}
`,
			want: Counts{Failed: 1},
			out:  "# p\np/a.go:1: undefined: x\nFAIL\tp [build failed]\n",
		},
		"one without tests, and words that are no JSON": {
			in: `go: downloading example.com/x v1.0.0
{"Action":"output","Package":"p","Output":"?   \tp\t[no test files]\n"}
{"Action":"skip","Package":"p","Elapsed":0}
{"not":"an event"}`,
			out: "go: downloading example.com/x v1.0.0\n{\"not\":\"an event\"}",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			got, err := newSummary(&out, time.Now).read(strings.NewReader(c.in))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("counts (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.out, out.String()); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

// slowReader is a go test that says nothing for a while.
type slowReader struct {
	lines []string
	pause time.Duration
}

func (r *slowReader) Read(b []byte) (int, error) {
	if len(r.lines) == 0 {
		time.Sleep(r.pause)
		return strings.NewReader("").Read(b)
	}
	n := copy(b, r.lines[0])
	r.lines = r.lines[1:]
	return n, nil
}

func TestSummary_tellsWhatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		in := &slowReader{pause: 70 * time.Second, lines: []string{
			`{"Action":"run","Package":"p","Test":"TestA"}` + "\n", `{"Action":"run","Package":"p","Test":"TestA/slow"}` + "\n",
		}}
		if _, err := newSummary(&out, time.Now).read(in); err != nil {
			t.Fatal(err)
		}
		want := "   runs since 30s: p TestA/slow\n   runs since 1m0s: p TestA/slow\n"
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("output (-want +got):\n%s", diff)
		}
	})
}

func TestSummary_tellsThatItCompiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		if _, err := newSummary(&out, time.Now).read(&slowReader{pause: 35 * time.Second}); err != nil {
			t.Fatal(err)
		}
		want := "   compiling and linking for 30s (all of Kubernetes from nothing: 8 to 15 minutes on two cores)\n"
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("output (-want +got):\n%s", diff)
		}
	})
}

func TestRun_total(t *testing.T) {
	const pass = `{"Action":"pass","Package":"p","Test":"TestA"}` + "\n"
	const fail = `{"Action":"fail","Package":"p","Test":"TestB"}` + "\n"
	const skip = `{"Action":"skip","Package":"p","Test":"TestC"}` + "\n"
	for name, c := range map[string]struct {
		phases []string
		want   string
		ok     bool
	}{
		"all is well":       {[]string{pass + skip, pass}, "2 passed, 0 failed, 1 skipped\n", true},
		"one phase failed":  {[]string{pass + fail, pass}, "2 passed, 1 failed, 0 skipped\n", false},
		"all were skipped":  {[]string{skip}, "0 passed, 0 failed, 1 skipped\n", false},
		"there was no test": {[]string{""}, "0 passed, 0 failed, 0 skipped\n", false},
		"there was no run":  {nil, "0 passed, 0 failed, 0 skipped\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "counts")
			for _, p := range c.phases {
				var out strings.Builder
				ok, err := run(options{counts: file, phase: "unit"}, strings.NewReader(p), &out)
				if err != nil || ok == strings.Contains(p, fail) {
					t.Errorf("phase: %v, %v", ok, err)
				}
			}
			var out strings.Builder
			ok, err := run(options{counts: file, total: true}, nil, &out)
			if err != nil || ok != c.ok || out.String() != c.want {
				t.Errorf("total: %q, %v, %v; want %q, %v", out.String(), ok, err, c.want, c.ok)
			}
		})
	}
}

func TestRun_again(t *testing.T) {
	const (
		good = `{"Action":"pass","Package":"good","Test":"TestA"}` + "\n" + `{"Action":"pass","Package":"good"}` + "\n"
		bad  = `{"Action":"pass","Package":"bad","Test":"TestA"}` + "\n" + `{"Action":"fail","Package":"bad","Test":"TestB"}` + "\n" + `{"Action":"fail","Package":"bad"}` + "\n"
		torn = `{"Action":"fail","Package":"torn"}` + "\n"
		some = `{"Action":"pass","Package":"some","Test":"TestA"}` + "\n" +
			`{"Action":"pass","Package":"some","Test":"TestC/one"}` + "\n" + `{"Action":"fail","Package":"some","Test":"TestC/two"}` + "\n" +
			`{"Action":"fail","Package":"some","Test":"TestC"}` + "\n" + `{"Action":"fail","Package":"some","Test":"TestB"}` + "\n"
		whole = `{"Action":"output","Package":"some","Output":"FAIL\n"}` + "\n" + `{"Action":"fail","Package":"some"}` + "\n"
		panic = `{"Action":"output","Package":"some","Output":"FAIL\tsome\t0.1s\n"}` + "\n" + `{"Action":"fail","Package":"some"}` + "\n"
	)
	for name, c := range map[string]struct {
		in    string
		ok    bool
		again string
		total string
	}{
		"nothing failed":       {good, true, "", "1 passed, 0 failed, 0 skipped\n"},
		"two packages":         {good + bad + torn, false, "bad\ntorn\n", "1 passed, 0 failed, 0 skipped\n"},
		"tests of a package":   {some + whole, false, "some ^(TestB|TestC)$\n", "1 passed, 0 failed, 0 skipped\n"},
		"tests and a panic":    {good + some + panic, false, "some\n", "1 passed, 0 failed, 0 skipped\n"},
		"too many for chances": {strings.ReplaceAll(bad, "bad", "b1") + strings.ReplaceAll(bad, "bad", "b2") + bad + torn, false, "", "3 passed, 4 failed, 0 skipped\n"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			o := options{counts: filepath.Join(dir, "counts"), phase: "unit", again: filepath.Join(dir, "again")}
			var out strings.Builder
			ok, err := run(o, strings.NewReader(c.in), &out)
			if err != nil || ok != c.ok {
				t.Errorf("phase: %v, %v", ok, err)
			}
			again, _ := os.ReadFile(o.again)
			out.Reset()
			if _, err := run(options{counts: o.counts, total: true}, nil, &out); err != nil || string(again) != c.again || out.String() != c.total {
				t.Errorf("again %q, total %q, %v; want %q, %q", again, out.String(), err, c.again, c.total)
			}
		})
	}
}
