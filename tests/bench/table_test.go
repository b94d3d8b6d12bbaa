package bench_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A row is one figure and its floor, each as its samples.
type row struct {
	what      string
	unit      string
	ours      []float64
	floor     []float64 // may be empty, where the goal is a number
	floorName string    // name of the floor
	goal      string
	judge     judgement
	// tail has the longest sample judged instead of the median: the goal is a 99th percentile, and
	// there are fewer samples than a hundred.
	tail bool
	note string // its bound, or a remark
}

// A judgement makes the figure of a row, and reports whether it reaches the goal.
type judgement func(ours, floor float64) (figure string, met bool)

func ratio(most float64) judgement {
	return func(ours, floor float64) (string, bool) { return fmt.Sprintf("%.2f x", ours/floor), ours/floor <= most }
}

func ratioAtLeast(least float64) judgement {
	return func(ours, floor float64) (string, bool) {
		return fmt.Sprintf("%.2f x", ours/floor), ours/floor >= least
	}
}

func above(most float64, unit string) judgement {
	return func(ours, floor float64) (string, bool) {
		return fmt.Sprintf("%+.4g %s", ours-floor, unit), ours-floor <= most
	}
}

func atMost(most float64, unit string) judgement {
	return func(ours, _ float64) (string, bool) { return fmt.Sprintf("%.4g %s", ours, unit), ours <= most }
}

func atLeast(least float64, unit string) judgement {
	return func(ours, _ float64) (string, bool) { return fmt.Sprintf("%.4g %s", ours, unit), ours >= least }
}

func samples(v []float64, unit string) string {
	switch {
	case len(v) == 0:
		return "-"
	case len(v) == 1:
		return fmt.Sprintf("%.4g %s", v[0], unit)
	}
	return fmt.Sprintf("%.4g %s (%.4g to %.4g, %d times)", median(v), unit, slices.Min(v), slices.Max(v), len(v))
}

func (r row) line() string {
	floor, measured := 0.0, samples(r.floor, r.unit)
	if len(r.floor) > 0 {
		floor = median(r.floor)
	}
	if r.floorName != "" {
		measured = r.floorName + ": " + measured
	}
	judged := median(r.ours)
	if r.tail {
		judged = slices.Max(r.ours)
	}
	figure, met := r.judge(judged, floor)
	verdict := "yes"
	if !met {
		verdict = "**no**"
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s |", r.what, samples(r.ours, r.unit), measured, figure, r.goal, verdict)
}

const (
	tableHead = "| what | Skerry | floor | figure | goal | met |\n| --- | --- | --- | --- | --- | --- |\n"
	notesHead = "\n## What bounds them\n"
)

// report prints rows and brings the file up to date.
func (s *bench) report(b *testing.B, rows []row) {
	b.Helper()
	for _, r := range rows {
		fmt.Println(r.line())
		if r.note != "" {
			fmt.Println("  " + r.note)
		}
	}
	if *write == "" || len(rows) == 0 {
		return
	}
	old, err := os.ReadFile(*write)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		b.Fatal(err)
	}
	check(b, os.WriteFile(*write, page(string(old), rows), 0o644))
}

// page is the page with rows in the places of those that were measured before, and in the order of
// the benchmarks.
func page(old string, rows []row) []byte {
	lines, notes := map[string]string{}, map[string]string{}
	for line := range strings.Lines(old) {
		line = strings.TrimRight(line, "\n")
		if what, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " | "); ok && strings.HasPrefix(line, "| ") && what != "what" && what != "---" {
			lines[what] = line
		}
		if what, text, ok := strings.Cut(strings.TrimPrefix(line, "- **"), ":** "); ok && strings.HasPrefix(line, "- **") {
			notes[what] = text
		}
	}
	for _, r := range rows {
		lines[r.what] = r.line()
		delete(notes, r.what)
		if r.note != "" {
			notes[r.what] = r.note
		}
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, `# Benchmarks
Written by `+"`make bench`"+`, which measures every figure together with its floor in the same run: the two take turns, so that a slow moment of the machine meets both. A
figure is made of medians; behind each stand the least and the most of its samples. Each row can be measured alone, so some may be of an earlier run.

Last written %s on %s. Absolute times belong to the machine: what a busy one takes longer for is in
both columns.

`, time.Now().UTC().Format(time.DateOnly), machine())
	out.WriteString(tableHead)
	for _, what := range order {
		if line, ok := lines[what]; ok {
			fmt.Fprintln(&out, line)
		}
	}
	out.WriteString(notesHead)
	for _, what := range order {
		text, ok := notes[what]
		if !ok {
			text, ok = standing[what]
		}
		if _, measured := lines[what]; ok && measured {
			fmt.Fprintf(&out, "- **%s:** %s\n", what, text)
		}
	}
	return out.Bytes()
}

// standing are the remarks on a row that don't depend on the measurement.
var standing = map[string]string{
	whatResyncTen: "the difference of two reconnects: the changed objects, compressed together, with the envelope of a message and its acknowledgement. cloudcore has seen the changes, so no inventory " +
		"is asked for. Counted at cloudcore, both ways, are the messages of every class but urgent: the hello, its welcome and heartbeats are not sent for a change, and one heartbeat more in one of the " +
		"two would be 60 bytes. The row with no changes counts every class.",
	whatResyncKill: "as above; a cloudcore that knows nothing of the time before sends what is newer than all that the edge holds, and what the edge should hold then (docs/dev/decisions/0018).",
	whatResyncMaps: "as above: ConfigMaps and Secrets are watched one by one, and have no history. A message with ten of them takes 462 bytes, of which 10 are the link's envelope and 35 the digest " +
		"of what the edge holds then (docs/dev/decisions/0072).",
	whatQueueOne: "where a disk syncs a page in some 0.1 ms (see the changes of a pod), a commit of the floor takes a quarter of a millisecond, and the work of a commit, on cores that others use " +
		"too, takes as long as the disk does: the wide range of the samples is the machine's.",
	whatReboot: "both wait for containerd and start 20 processes on the same cores. Where the two ranges overlap, as they do on a busy machine, the difference is within the noise.",
	whatManyPod: "each ConfigMap is watched on its own, as the node, at kube-apiserver (docs/dev/decisions/0004): 500 watches that cloudcore opens there, and then 500 objects that cross the link and a disk. " +
		"The plain kubelet opens the same 500 watches.",
}

// machine describes the machine of the measurement, in general terms.
func machine() string {
	var u unix.Utsname
	release := "an unknown kernel"
	if unix.Uname(&u) == nil {
		version, _, _ := strings.Cut(unix.ByteSliceToString(u.Release[:]), "-")
		release = "Linux " + version
	}
	var info unix.Sysinfo_t
	memory := "unknown"
	if unix.Sysinfo(&info) == nil {
		memory = strconv.FormatUint(info.Totalram*uint64(info.Unit)>>30, 10)
	}
	return fmt.Sprintf("%d cores (%s), %s GiB of memory, %s, %s; the load average was %.2g", runtime.NumCPU(), runtime.GOARCH, memory, release, runtime.Version(), loadAverage())
}

// loadAverage is the load average of the last minute.
func loadAverage() float64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return float64(info.Loads[0]) / (1 << 16) // sysinfo(2): fixed-point, 16 bits
}

func TestPage(t *testing.T) {
	fixed := func(what string, ours float64, note string) row {
		return row{what: what, unit: "ms", ours: []float64{ours}, floor: []float64{10}, goal: "2 x", judge: ratio(2), note: note}
	}
	first := page("", []row{fixed(whatPod, 15, "an old note"), fixed(whatTen, 30, "it is slow")})
	second := string(page(string(first), []row{fixed(whatPod, 12, "")}))
	for _, want := range []string{"| " + whatPod + " | 12 ms | 10 ms | 1.20 x | 2 x | yes |", "| " + whatTen + " | 30 ms | 10 ms | 3.00 x | 2 x | **no** |", "- **" + whatTen + ":** it is slow"} {
		if !strings.Contains(second, want+"\n") {
			t.Errorf("%q is not in\n%s", want, second)
		}
	}
	if strings.Contains(second, "an old note") || strings.Count(second, whatPod) != 1 {
		t.Errorf("what was measured before is still in\n%s", second)
	}
}
