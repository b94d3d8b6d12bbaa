package main

import (
	"io"
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
			s := newSummary(&out, time.Now)
			if err := s.read(strings.NewReader(c.in)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, s.counts); diff != "" {
				t.Errorf("counts (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.out, out.String()); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

// slowReader is a go test that is silent for a while.
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
		if err := newSummary(&out, time.Now).read(in); err != nil {
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
		if err := newSummary(&out, time.Now).read(&slowReader{pause: 35 * time.Second}); err != nil {
			t.Fatal(err)
		}
		want := "   compiling and linking for 30s (all of Kubernetes from nothing: 8 to 15 minutes on two cores)\n"
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("output (-want +got):\n%s", diff)
		}
	})
}

func TestSummary_secondTries(t *testing.T) {
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
		again []retry
		left  Counts
	}{
		"nothing failed":       {good, nil, Counts{Passed: 1}},
		"two packages":         {good + bad + torn, []retry{{Package: "bad"}, {Package: "torn"}}, Counts{Passed: 1}},
		"tests of a package":   {some + whole, []retry{{"some", []string{"TestB", "TestC"}}}, Counts{Passed: 1}},
		"tests and a panic":    {good + some + panic, []retry{{Package: "some"}}, Counts{Passed: 1}},
		"too many for chances": {strings.ReplaceAll(bad, "bad", "b1") + strings.ReplaceAll(bad, "bad", "b2") + bad + torn, nil, Counts{Passed: 3, Failed: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSummary(io.Discard, time.Now)
			if err := s.read(strings.NewReader(c.in)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.again, s.secondTries(mostAgain)); diff != "" {
				t.Errorf("again (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.left, s.counts); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSummary_listsLongTests(t *testing.T) {
	s := newSummary(io.Discard, time.Now)
	err := s.read(strings.NewReader(`{"Action":"pass","Package":"p","Test":"TestA/slow","Elapsed":11}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":12.5}
{"Action":"pass","Package":"p","Test":"TestB","Elapsed":9.9}
`))
	if diff := cmp.Diff([]timedTest{{"p", "TestA", 12.5}}, s.slow); err != nil || diff != "" {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
}

func TestSummary_collectsWaits(t *testing.T) {
	s := newSummary(io.Discard, time.Now)
	err := s.read(strings.NewReader(`{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:9: waited 1m3s for node edge1 to be Ready=false\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    a_test.go:9: waited 3m0s for a pod: there is none\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    a_test.go:9: it waited for a pod\n"}
`))
	want := []wait{{"p", "TestA", "node edge1 to be Ready=false", 63}, {"p", "TestB", "a pod: there is none", 180}}
	if diff := cmp.Diff(want, s.waits); err != nil || diff != "" {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
	var out strings.Builder
	r := result{Waits: s.waits}
	if err := r.writeTables(&out); err != nil {
		t.Fatal(err)
	}
	if want := "Tests waited 243 s for conditions:\n\n| condition | test | s |\n| --- | --- | ---: |\n| a pod: there is none | p TestB | 180 |\n"; !strings.Contains(out.String(), want) {
		t.Errorf("the tables have no\n%s\n%s", want, out.String())
	}
}
