package trial

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/host"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/process"
)

func TestOptions(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Options)
		want   []string // parts of the error; empty for a valid one
	}{
		"the default":    {func(*Options) {}, nil},
		"no node at all": {func(o *Options) { o.Edges = 0 }, []string{"at least one node"}},
		"only plain":     {func(o *Options) { o.Edges, o.Plain = 0, 1 }, nil},
		"all mistakes at once": {
			func(o *Options) { o.Edges, o.Plain, o.Link, o.Set = -1, 1000, "carrier pigeon", []string{"no value"} },
			[]string{"--edges", "--plain", "--link", "--set"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := DefaultOptions()
			c.change(&o)
			err := o.Validate()
			if (err != nil) != (len(c.want) > 0) {
				t.Fatalf("error is %v", err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not name %q", err, w)
				}
			}
		})
	}
}

func TestSet(t *testing.T) {
	for name, c := range map[string]struct {
		before, setting, want string
		fails                 bool
	}{
		"a new section":      {"{}", "modules.edged.reportEvent=true", "modules: {edged: {reportEvent: true}}", false},
		"in a section":       {"{a: {b: 1, c: 2}}", "a.b=3", "a: {b: 3, c: 2}", false},
		"a list":             {"{}", "servers=[one, two]", "servers: [one, two]", false},
		"a string with =":    {"{}", "a=b=c", "a: b=c", false},
		"nothing is null":    {"{a: 1}", "a=", "a: null", false},
		"below a value":      {"{a: 1}", "a.b=2", "", true},
		"no value":           {"{}", "a.b", "", true},
		"an empty name":      {"{}", "a..b=1", "", true},
		"a value not YAML":   {"{}", "a={", "", true},
		"no path":            {"{}", "=1", "", true},
		"a whole section":    {"{}", "kubelet={maxPods: 5}", "kubelet: {maxPods: 5}", false},
		"replaces a section": {"{a: {b: 1}}", "a={c: 2}", "a: {c: 2}", false},
	} {
		t.Run(name, func(t *testing.T) {
			var have, want doc
			if err := errors.Join(yaml.Unmarshal([]byte(c.before), &have), yaml.Unmarshal([]byte(c.want), &want)); err != nil {
				t.Fatal(err)
			}
			path, value, err := parseSet(c.setting)
			if err == nil {
				err = set(have, path, value)
			}
			if (err != nil) != c.fails {
				t.Fatalf("error is %v", err)
			}
			if diff := cmp.Diff(want, have); !c.fails && diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestMerge(t *testing.T) {
	before := []string{"a.b=1", "c=2"}
	got := merge(before, []string{"c=3", "d=4", "a=5"})
	if diff := cmp.Diff([]string{"a.b=1", "c=3", "d=4", "a=5"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"a.b=1", "c=2"}, before); diff != "" {
		t.Errorf("the settings before were changed (-want +got):\n%s", diff)
	}
}

// TestState: a command reads the state that an earlier one wrote.
func TestState(t *testing.T) {
	dir := t.TempDir()
	a := open(t, dir)
	if err := a.exists(); err == nil {
		t.Error("a trial in an empty directory")
	}
	o := DefaultOptions()
	o.Plain, o.Set = 1, []string{"log.verbosity=4"}
	if err := a.begin(o); err != nil {
		t.Fatal(err)
	}
	err := a.change(func(s *State) {
		m := s.Hosts["edge1"]
		m.Processes = map[string]process.Identity{"edgecore": {PID: 5, Start: 6}}
		m.Cut, m.Shape, m.Joined = lab.Silent, lab.Shape{Rate: 256000, Loss: 0.1}, true
	})
	if err != nil {
		t.Fatal(err)
	}
	b := open(t, dir)
	if diff := cmp.Diff(a.state, b.state, cmp.Comparer(func(x, y Machine) bool {
		return cmp.Equal(x.Processes, y.Processes) && x.Cut == y.Cut && x.Shape == y.Shape && x.Joined == y.Joined
	}), cmp.Comparer(func(x, y State) bool {
		return x.ID == y.ID && x.Network == y.Network && cmp.Equal(x.Options, y.Options) && len(x.Hosts) == len(y.Hosts)
	})); diff != "" {
		t.Errorf("(-written +read):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"cloud", "client", "edge1", "edge2", "plain1"}, b.Hosts()); diff != "" {
		t.Errorf("hosts (-want +got):\n%s", diff)
	}
	if _, err := b.node("edge3"); err == nil || !strings.Contains(err.Error(), "edge1, edge2, plain1") {
		t.Errorf("an unknown node: %v", err)
	}
	if err := os.WriteFile(b.statePath(), []byte("{half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open("", dir, io.Discard); err == nil {
		t.Error("a damaged state is read")
	}
}

func open(t *testing.T, dir string) *Trial {
	t.Helper()
	tr, err := Open("", dir, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// TestEdgecoreFile: the trial's and the edge's own settings are in the file, the edge's last.
func TestEdgecoreFile(t *testing.T) {
	tr := open(t, t.TempDir())
	o := DefaultOptions()
	o.Link, o.Set = "quic", []string{"modules.edged.reportEvent=true", "log.verbosity=4"}
	if err := tr.begin(o); err != nil {
		t.Fatal(err)
	}
	if err := tr.change(func(s *State) { s.Hosts["edge2"].Set = []string{"log.verbosity=6"} }); err != nil {
		t.Fatal(err)
	}
	for name, verbosity := range map[string]float64{"edge1": 4, "edge2": 6} {
		n, err := tr.node(name)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := tr.edgecoreFile(n)
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Kind    string
			Log     struct{ Verbosity float64 }
			Modules struct {
				EdgeHub struct {
					Servers   []string
					Transport string
				}
				Edged struct {
					ReportEvent bool
					Kubelet     struct{ CgroupRoot string }
				}
			}
		}
		if err := yaml.Unmarshal(raw, &got); err != nil {
			t.Fatal(err)
		}
		if got.Kind != "EdgeCore" || got.Log.Verbosity != verbosity || got.Modules.EdgeHub.Transport != "quic" || !got.Modules.Edged.ReportEvent ||
			got.Modules.EdgeHub.Servers[0] != lab.Cloud().String() || !strings.HasSuffix(got.Modules.Edged.Kubelet.CgroupRoot, "/"+name) {
			t.Errorf("%s:\n%s", name, raw)
		}
	}
}

// TestDown cleans the possible leftovers of a crash at any moment: hosts whose start was not
// written down, a state that can't be read, cgroups, half made directories.
func TestDown(t *testing.T) {
	if testing.Short() || os.Getuid() != 0 {
		t.Skip("namespaces are made only as root and without -short")
	}
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	for name, state := range map[string]string{"no state": "", "a damaged state": "{half", "a state without the hosts": `{"id":"x","options":{"edges":1,"link":"auto"},"hosts":{}}`} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "trial")
			tr, err := Open(root, dir, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			if err := tr.images(t.Context()); err != nil {
				t.Fatal(err)
			}
			h, err := host.Boot(t.Context(), host.Spec{Hostname: "edge1", Init: tr.initPath(), Mark: tr.mark("edge1"), Dir: tr.hostDir("edge1")})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { h.Halt(context.Background()) })
			child, err := h.Start(process.Spec{Path: "sleep", Args: []string{"1000"}})
			if err != nil {
				t.Fatal(err)
			}
			if err := host.MakeCgroup(tr.cgroup("edge1")); err != nil {
				t.Fatal(err)
			}
			if state != "" {
				if err := os.WriteFile(tr.statePath(), []byte(state), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			again, _ := Open(root, dir, io.Discard) // its error is about the damaged state, which Down gets over
			for range 2 {
				if err := again.Down(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if h.Running() || child.Alive() {
				t.Error("something runs still")
			}
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the directory is there: %v", err)
			}
			if left, _ := filepath.Glob("/sys/fs/cgroup/*/" + tr.cgroupRoot()); len(left) > 0 {
				t.Errorf("cgroups are left: %v", left)
			}
		})
	}
}

// TestLock: commands of several processes don't change a trial at the same time, also while it
// comes and goes.
func TestLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "trial")
	const commands = 8
	inside, errs := make(chan struct{}, 1), make(chan error, commands)
	for range commands {
		go func() {
			tr, err := Open("", dir, io.Discard)
			if err != nil {
				errs <- err
				return
			}
			unlock, err := tr.lock(t.Context())
			if err != nil {
				errs <- err
				return
			}
			select {
			case inside <- struct{}{}:
				<-inside
			default:
				err = errors.New("two at once")
			}
			unlock() // removes the directory, as there is no trial
			errs <- err
		}()
	}
	for range commands {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// Checkouts that are bound to the same path have trials of different names.
func TestIdentify(t *testing.T) {
	one, other := &Trial{root: t.TempDir(), dir: "/srv/.trial"}, &Trial{root: t.TempDir(), dir: "/srv/.trial"}
	if one.identify() == other.identify() || one.identify() != one.identify() {
		t.Errorf("%s and %s", one.identify(), other.identify())
	}
}
