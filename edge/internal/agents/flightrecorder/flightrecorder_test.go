package flightrecorder

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func open(t *testing.T, dir string) *Recorder {
	t.Helper()
	r, err := Open(dir, "boot-1")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func reasons(t *testing.T, dir string) (all []string) {
	t.Helper()
	records, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		all = append(all, r.Reason)
	}
	return all
}

// Records survive the process, half a line and damage cost only that line, and an occurrence with
// the same ID is recorded once, over processes.
func TestRecorder_outlivesItsProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "recorder")
	r := open(t, dir)
	r.Add(t.Context(), Record{Kind: Link, Reason: "Up"})
	r.Add(t.Context(), Record{Kind: Container, Reason: "Error", ID: "containerd://1"})
	// No Close: the process is gone. The power went while the next line was written.
	f, err := os.OpenFile(filepath.Join(dir, "00000000.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("\x00\x00{\"kind\":\"Link\",\"rea"); err != nil {
		t.Fatal(err)
	}
	again := open(t, dir)
	again.Add(t.Context(), Record{Kind: Container, Reason: "Error", ID: "containerd://1"})
	again.Add(t.Context(), Record{Kind: Link, Reason: "Down", Cause: strings.Repeat("x", 5000)})
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	if got, want := reasons(t, dir), []string{"Up", "Error", "Down"}; !cmp.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
	records, _ := Read(dir)
	if last := records[2]; len(last.Cause) != maxText || last.Boot != "boot-1" || last.Time.IsZero() || last.Up == 0 {
		t.Errorf("%+v", last)
	}
}

// The files keep to their bound, and the newest records stay.
func TestRecorder_isBounded(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	r.limit.SetLimit(1e9)
	r.limit.SetBurst(1e9)
	n := 2 * MaxBytes / maxText
	for i := range n {
		r.Add(t.Context(), Record{Kind: Event, Reason: fmt.Sprint(i), Cause: strings.Repeat("x", maxText)})
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	size := int64(0)
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if size > MaxBytes || size < MaxBytes/2 || MaxBytes > 64<<20 {
		t.Errorf("%d bytes in %d files, bound %d", size, len(files), MaxBytes)
	}
	all := reasons(t, dir)
	if last := all[len(all)-1]; last != fmt.Sprint(n-1) {
		t.Errorf("the newest is %s", last)
	}
}

// A restless device does not fill its disk: refused records are counted.
func TestRecorder_refusesAFlood(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	for range floodBurst + 100 {
		r.Add(t.Context(), Record{Kind: Event, Reason: "x"})
	}
	r.limit.SetBurst(floodBurst + 10)
	r.limit.SetLimit(1e9)
	time.Sleep(time.Millisecond)
	r.Add(t.Context(), Record{Kind: Event, Reason: "after"})
	all, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(all); n < floodBurst+2 || n > floodBurst+10 || all[n-2].Kind != Dropped || all[n-1].Reason != "after" {
		t.Errorf("%d records, the last are %+v", n, all[n-2:])
	}
}

// Only a record asks for a sync.
func TestRecorder_syncsOnlyWhatWasRecorded(t *testing.T) {
	r := open(t, t.TempDir())
	select {
	case <-r.dirty:
		t.Error("a recorder that was opened wants a sync")
	default:
	}
	r.Add(t.Context(), Record{Kind: Link, ID: "1"})
	<-r.dirty
	r.Add(t.Context(), Record{Kind: Link, ID: "1"})
	select {
	case <-r.dirty:
		t.Error("what is known already wants a sync")
	default:
	}
}

// On a full disk the recorder drops records, and records again when there is room.
func TestRecorder_withoutItsDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "in", "file")
	if err := os.WriteFile(filepath.Dir(dir), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Open(dir, "boot")
	if err == nil {
		t.Fatal("opened")
	}
	r.Add(t.Context(), Record{Kind: Link, Reason: "lost"})
	if err := os.Remove(filepath.Dir(dir)); err != nil {
		t.Fatal(err)
	}
	r.Add(t.Context(), Record{Kind: Link, Reason: "kept"})
	if got := reasons(t, dir); !cmp.Equal(got, []string{"kept"}) {
		t.Error(got)
	}
}

func TestBegan(t *testing.T) {
	at := time.Date(2026, 11, 27, 8, 0, 0, 0, time.UTC)
	rec := func(boot string, kind Kind, reason string) Record {
		return Record{Time: at, Boot: boot, Kind: kind, Reason: reason, PID: 7}
	}
	for name, c := range map[string]struct {
		before  []Record
		machine Machine
		want    []string // Kind/Reason
		cause   string
	}{
		"the first run": {nil, Machine{}, []string{"Start/First"}, "no earlier record"},
		"a restart":     {[]Record{rec("b", Start, "First"), rec("b", Stop, "Stopped")}, Machine{}, []string{"Start/Restart"}, "stopped in order"},
		"a kill -9":     {[]Record{rec("b", Start, "First"), rec("b", Link, "Up")}, Machine{Killed: []string{"8"}}, []string{"Start/Killed"}, "process 7"},
		"an OOM kill":   {[]Record{rec("b", Start, "First")}, Machine{Killed: []string{"7"}}, []string{"OOM/OOMKilled", "Start/OOMKilled"}, "want of memory"},
		"a power cut":   {[]Record{rec("a", Start, "First"), rec("a", Link, "Up")}, Machine{}, []string{"Boot/PowerLoss", "Start/Boot"}, "power cut"},
		"a reboot in order": {[]Record{rec("a", Start, "First"), rec("a", Shutdown, "Announced"), rec("a", Stop, "Stopped")}, Machine{},
			[]string{"Boot/Shutdown", "Start/Boot"}, "shut down in order"},
		"an end after a stop": {[]Record{rec("a", Start, "First"), rec("a", Stop, "Stopped")}, Machine{}, []string{"Boot/Stopped", "Start/Boot"}, "edgecore was stopped before"},
		"a panic":             {[]Record{rec("a", Start, "First")}, Machine{Panic: "Kernel panic - not syncing: x"}, []string{"Boot/KernelPanic", "Start/Boot"}, "not syncing: x"},
		"the watchdog":        {[]Record{rec("a", Start, "First")}, Machine{Watchdog: 0x20}, []string{"Boot/Watchdog", "Start/Boot"}, "the watchdog reset"},
		"a shutdown given up": {[]Record{rec("a", Start, "First"), rec("a", Shutdown, "Announced"), rec("a", Start, "Restart")}, Machine{}, []string{"Boot/PowerLoss", "Start/Boot"}, "power cut"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			var causes string
			for _, r := range began(c.before, "b", 9, "v1", c.machine) {
				got = append(got, string(r.Kind)+"/"+r.Reason)
				causes += r.Cause + "\n"
			}
			if !cmp.Equal(got, c.want) || !strings.Contains(causes, c.cause) {
				t.Errorf("%v, want %v: %s", got, c.want, causes)
			}
		})
	}
}

func TestOperate_11_PanicAndWatchdog(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{
		"sys/fs/pstore/dmesg-ramoops-0":           "Oops#1\n<0>[  12.3] Kernel panic - not syncing: Fatal exception\n",
		"sys/class/watchdog/watchdog0/bootstatus": "32\n",
		"var/lib/systemd/pstore/1700/dmesg.txt":   "Kernel panic - not syncing: an older one\n",
		"sys/class/watchdog/watchdog1/bootstatus": "0\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got := ReadMachine(root)
	if want := (Machine{Panic: "Kernel panic - not syncing: Fatal exception", Watchdog: 0x20}); !cmp.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
	lines := []string{"Memory cgroup out of memory: Killed process 4711 (edgecore) total-vm:1kB", "something else", "Out of memory: Killed process 12 (a b) x"}
	if got := killed(lines); !cmp.Equal(got, []string{"4711", "12"}) {
		t.Error(got)
	}
	ReadMachine("/") // whatever this machine has
}

func TestOfPod(t *testing.T) {
	at := metav1.Date(2026, 11, 27, 8, 0, 0, 0, time.UTC)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", UID: "u"}, Status: corev1.PodStatus{
		Phase: corev1.PodFailed, Reason: "Evicted", Message: "low on memory",
		ContainerStatuses: []corev1.ContainerStatus{
			{Name: "oom", LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled", FinishedAt: at, ContainerID: "c1"}}},
			{Name: "err", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error", Message: "no config\n", FinishedAt: at, ContainerID: "c2"}}},
			{Name: "runs", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
		},
	}}
	want := []Record{
		{Kind: Eviction, Object: "n/p", Reason: "Evicted", Cause: "low on memory", ID: "pod/u/Evicted"},
		{Time: at.Time, Kind: OOM, Object: "n/p/oom", Reason: "OOMKilled", Cause: "exit code 137 (signal 9, killed)", ID: "c1"},
		{Time: at.Time, Kind: Container, Object: "n/p/err", Reason: "Error", Cause: "exit code 3: no config", ID: "c2"},
	}
	if got := ofPod(p); !cmp.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
}

func TestOfEvent(t *testing.T) {
	for name, c := range map[string]struct {
		event corev1.Event
		kind  Kind // "": not recorded
		id    string
	}{
		"a warning":            {corev1.Event{Type: "Warning", Reason: "BackOff", Count: 5}, Event, "event/u/3"},
		"the same, later":      {corev1.Event{Type: "Warning", Reason: "BackOff", Count: 7}, Event, "event/u/3"},
		"an operation":         {corev1.Event{Type: "Normal", Reason: "OperationDone", Source: corev1.EventSource{Component: "drain"}}, Operation, "event/u/1"},
		"a system OOM":         {corev1.Event{Type: "Warning", Reason: "SystemOOM"}, OOM, "event/u/1"},
		"an eviction":          {corev1.Event{Type: "Warning", Reason: "Evicted"}, Eviction, "event/u/1"},
		"of the node":          {corev1.Event{Type: "Normal", Reason: "Rebooted", InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "e"}}, Event, "event/u/1"},
		"why a container dies": {corev1.Event{Type: "Normal", Reason: "Killing", InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "e"}}, Event, "event/u/1"},
		"an everyday one":      {corev1.Event{Type: "Normal", Reason: "Pulled", InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "e"}}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c.event.UID = types.UID("u")
			all := ofEvent(&c.event, "drain")
			if c.kind == "" {
				if len(all) != 0 {
					t.Errorf("%+v", all)
				}
				return
			}
			if len(all) != 1 || all[0].Kind != c.kind || all[0].ID != c.id {
				t.Errorf("%+v", all)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"kind":"Boot","time":"2026-11-27T08:00:00Z"}` + "\n\x00half"))
	f.Add([]byte(`{"kind":"Container","id":"containerd://1"}` + "\n" + `{"kind":"Link","reason":"Up"}`))
	f.Add([]byte(strings.Repeat(`{"kind":"Event","cause":"`+strings.Repeat("x", 300)+`"}`+"\n", 200)))
	f.Fuzz(func(t *testing.T, data []byte) {
		before := len(parse(data))
		// A process that continues with such a file records in it.
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "00000000.jsonl"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		r := open(t, dir)
		r.Add(t.Context(), Record{Kind: Stop, Reason: "Fuzzed"})
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		all, err := Read(dir)
		if err != nil || len(all) == 0 || all[len(all)-1].Reason != "Fuzzed" || len(all) > before+1 {
			t.Errorf("%d records of %d, %v", len(all), before, err)
		}
	})
}
