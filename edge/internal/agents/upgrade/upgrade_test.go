package upgrade_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/edge/artefactrepo"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
	"github.com/skerry-io/skerry/edge/internal/agents/upgrade"
	"github.com/skerry-io/skerry/edge/internal/core/artefact"
	"github.com/skerry-io/skerry/edge/internal/core/launch"
)

// system is a device with a real Store and a real directory of skerry-launch; its fields define the
// rest of edgecore. Each do is a process of its own.
type system struct {
	*testing.T
	repo      *artefactrepo.Repository
	directory launch.Directory
	dir       string
	linked    bool
	rescue    protocol.Window // of a cloud without a common version; zero without a rescue session
	problems  []string
	restarted bool   // all containers of a pod have started since the process began
	boot      string // of the device; default "1"
	checks    []v1alpha1.HealthCheck
	server    string
	schema    int
	writable  error
	version   string
	self      string // the file of the package's program; "" if it can't be read
	zone      *time.Location
	images    images
	reports   []drain.Work
	log       string          // of the last trial
	ahead     time.Duration   // how far the cloud's time is ahead of the device's clock
	fetched   func()          // called when a file is complete; may be nil
	cloud     artefact.Source // default the repository
	// neighbours are the devices of the site; nil: there is no site.
	neighbours artefact.Neighbours
}

func newSystem(t *testing.T) *system {
	t.Helper()
	s := &system{T: t, dir: t.TempDir(), linked: true, server: "v1.37.1", schema: 2, version: "v1.3.0", zone: time.UTC, images: images{there: map[string]bool{}}}
	s.directory = launch.Directory{Path: filepath.Join(s.dir, "bin"), Disk: launch.System{}}
	var err error
	s.repo, err = artefactrepo.New(filepath.Join(s.dir, "repo"))
	s.check(err)
	s.repo.Expires = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
	return s
}

func (s *system) check(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *system) add(version string, program string, change func(*artefactrepo.Target)) {
	s.Helper()
	_, err := s.repo.Add(version, "amd64", []byte(program), change)
	s.check(err)
}

// process are the Works of a fresh process, as skerry-launch starts it. restarted reports whether
// it asked to be executed again.
func (s *system) process() (w *upgrade.Works, restarted func() bool) {
	s.Helper()
	state, err := s.directory.Load()
	s.check(err)
	state, program := state.Start(launch.Facts{Boot: cmp.Or(s.boot, "1"), Now: time.Now()})
	if state.Trial != nil {
		if counted, err := s.directory.Save(state); err == nil {
			state = counted
		} else { // skerry-launch starts no trial that it can't count
			state.Trial, program = nil, state.Confirmed
		}
	}
	if state.Trial != nil {
		s.log = "the end of the log"
	}
	ended := false
	return upgrade.New(upgrade.Config{
		Started: launch.Started{Dir: s.directory.Path, Program: program, Trial: state.Trial != nil}, Launched: true, Self: s.self, Directory: s.directory,
		Artefacts: artefact.New(artefact.Config{Keys: []string{s.repo.Dir}, Dir: filepath.Join(s.dir, "artefacts"), Arch: "amd64", Now: time.Now}),
		Cloud:     cmp.Or[artefact.Source](s.cloud, artefact.Files(s.repo.Dir)), Bundle: artefact.Files(s.repo.Dir), Device: device{s}, Images: &s.images, Neighbours: s.neighbours,
		Checks:   func(context.Context) ([]v1alpha1.HealthCheck, error) { return s.checks, nil },
		Writable: func() error { return s.writable }, Restart: func() { ended = true }, Log: func() string { return s.log },
		ClearLog: func() error { s.log = ""; return nil },
		Boot:     cmp.Or(s.boot, "1"), Version: s.version, Arch: "amd64", Now: time.Now, Clock: func() time.Time { return time.Now().Add(s.ahead) }, Zone: s.zone,
	}), func() bool { return ended }
}

// do lets one process continue with an operation until it ends, waits, or asks to be executed
// again.
func (s *system) do(o *drain.Operation) (work drain.Work, restarts bool) {
	s.Helper()
	w, restarted := s.process()
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	if err := w.Check(o); err != nil {
		s.Fatal(err)
	}
	done := make(chan drain.Work, 1)
	go func() {
		done <- w.Do(ctx, *o, func(w drain.Work) {
			s.reports = append(s.reports, w)
			o.Work = &w
			if u := w.Upgrade; s.fetched != nil && u != nil && u.Fetched > 0 && u.Fetched == u.Size {
				s.fetched()
				s.fetched = nil
			}
		})
	}()
	for {
		synctest.Wait()
		if restarted() {
			cancel()
			<-done
			return *o.Work, true
		}
		select {
		case work = <-done:
			o.Work = &work
			return work, false
		case <-time.After(time.Second):
		}
	}
}

func operation(spec v1alpha1.NodeOperationSpec) *drain.Operation {
	return &drain.Operation{Name: "one", UID: "1", Spec: spec, RequestedAt: time.Unix(1, 0)}
}

// fromBundle is an operation that an operator asked for on the device, with a bundle.
func fromBundle(spec v1alpha1.NodeOperationSpec) *drain.Operation {
	o := operation(spec)
	o.Request, o.RequestedBy = "1", v1alpha1.RequestedOnDevice
	return o
}

func upgradeTo(version string) v1alpha1.NodeOperationSpec {
	return v1alpha1.NodeOperationSpec{Operation: v1alpha1.OperationUpgrade, Upgrade: &v1alpha1.UpgradeSpec{Version: version}, HealthTimeout: &metav1.Duration{Duration: time.Minute}}
}

type device struct{ *system }

func (d device) Linked() bool  { return d.linked }
func (d device) Reaches() bool { return d.linked || d.rescue != (protocol.Window{}) }
func (d device) Protocols(context.Context) (protocol.Window, error) {
	return cmp.Or(d.rescue, protocol.Ours()), nil
}
func (d device) Problems(_ context.Context, rebooted bool) []string {
	if d.restarted && !rebooted {
		return append(slices.Clone(d.problems), "the containers of pod site/shop were restarted by the switch")
	}
	return d.problems
}

func (d device) ServerVersion(context.Context) (string, error) { return d.server, nil }
func (d device) Schema() int                                   { return d.schema }
func (d device) Judge(patch []byte) error {
	if strings.Contains(string(patch), "hooks") {
		return errors.New("modules.drain.hooks")
	}
	return nil
}

// The device itself accepts no value that a shell, a path or a command line would interpret.
func TestFleet_09_DeviceChecksTheFormats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		w, _ := s.process()
		pull := func(images []string, namespace, name string) v1alpha1.NodeOperationSpec {
			return v1alpha1.NodeOperationSpec{Operation: v1alpha1.OperationImagePull, ImagePull: &v1alpha1.ImagePullSpec{Images: images, PullSecret: &v1alpha1.SecretReference{Namespace: namespace, Name: name}}}
		}
		in := func(window v1alpha1.OperationWindow) v1alpha1.NodeOperationSpec {
			spec := upgradeTo("v1.4.0")
			spec.Window = &window
			return spec
		}
		digest := "sha256:" + strings.Repeat("0", 64)
		for _, good := range []v1alpha1.NodeOperationSpec{
			upgradeTo("v1.4.0"), upgradeTo("v1.4.0-rc.1+k8s1.36"), pull([]string{"a:1", "registry.example.com:5000/shop/till:1.4@" + digest}, "shop", "registry.example"),
			in(v1alpha1.OperationWindow{Start: "22:00", End: "04:00", TimeZone: "America/Argentina/Salta"}),
			{Operation: v1alpha1.OperationUpgrade, Upgrade: &v1alpha1.UpgradeSpec{Version: "v1.4.0", Digest: digest}},
		} {
			if err := w.Check(operation(good)); err != nil {
				t.Errorf("%+v: %v", good, err)
			}
		}
		for _, value := range []string{"$(x)", "../x", "v1.4.0/../x", "v1.4.0\nx", "v1.4.0\n", `v1.4.0"`, "v1.4.0'", "v1.4.0;x", "v1.4.0 x", "`x`", "-x", "v1.4.0\x00"} {
			for field, spec := range map[string]v1alpha1.NodeOperationSpec{
				"upgrade.version":                upgradeTo(value),
				"upgrade.digest":                 {Operation: v1alpha1.OperationUpgrade, Upgrade: &v1alpha1.UpgradeSpec{Version: "v1.4.0", Digest: value}},
				"imagePull.images":               pull([]string{"a:1", value}, "shop", "registry"),
				"imagePull.pullSecret.namespace": pull([]string{"a:1"}, value, "registry"),
				"imagePull.pullSecret.name":      pull([]string{"a:1"}, "shop", value),
				"window.timeZone":                in(v1alpha1.OperationWindow{Start: "22:00", End: "04:00", TimeZone: value}),
				"window":                         in(v1alpha1.OperationWindow{Start: value, End: "04:00"}),
			} {
				if err := w.Check(operation(spec)); err == nil || !strings.Contains(err.Error(), field+": ") {
					t.Errorf("%s %q: %v", field, value, err)
				}
			}
			if err := w.Check(operation(in(v1alpha1.OperationWindow{Start: "22:00", End: value}))); err == nil || !strings.Contains(err.Error(), "window: ") {
				t.Errorf("window.end %q: %v", value, err)
			}
		}
		if err := w.Check(operation(pull(make([]string, 33), "shop", "registry"))); err == nil {
			t.Error("33 images are accepted")
		}
	})
}

// An unusable artefact is refused before a byte is fetched, with the reason.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*artefactrepo.Target)
		device func(*system)
		want   string
	}{
		"a kubelet that is newer": {func(t *artefactrepo.Target) { t.Kubernetes = "v1.38.0" }, nil, "newer than kube-apiserver v1.37.1"},
		"a kubelet of long ago":   {func(t *artefactrepo.Target) { t.Kubernetes = "v1.33.0" }, nil, "three minor versions older"},
		"no common protocol":      {func(t *artefactrepo.Target) { t.Protocol, t.ProtocolMin = 99, 98 }, nil, "no version of the link's protocol"},
		"a newer schema here":     {func(t *artefactrepo.Target) { t.Schema = 1 }, nil, "schema 1 at most, this device's need 2"},
		"a downgrade":             {nil, func(s *system) { s.version = "v2.0.0" }, "allowDowngrade is false"},
		"noexec":                  {nil, func(s *system) { s.writable = errors.New("/var/lib/skerry/bin is mounted noexec") }, "noexec"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSystem(t)
				s.add("v1.4.0", "program", c.change)
				if c.device != nil {
					c.device(s)
				}
				work, _ := s.do(operation(upgradeTo("v1.4.0")))
				if work.Ended != drain.Failed || work.Reason != v1alpha1.OperationRefused || !strings.Contains(work.Message, c.want) {
					t.Errorf("want %q, got %+v", c.want, work)
				}
				if parts, _ := filepath.Glob(filepath.Join(s.dir, "artefacts", "*.part")); len(parts) > 0 {
					t.Errorf("bytes were fetched: %v", parts)
				}
			})
		})
	}
}

// An operator's bundle is compared with kube-apiserver while the device has a link; without one
// nobody can be asked.
func TestBundleIsComparedWithTheCluster(t *testing.T) {
	for _, linked := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := newSystem(t)
			s.add("v1.4.0", "program", func(t *artefactrepo.Target) { t.Kubernetes = "v1.38.0" })
			s.linked = linked
			o := fromBundle(upgradeTo("v1.4.0"))
			work, restarts := s.do(o)
			if refused := work.Reason == v1alpha1.OperationRefused && strings.Contains(work.Message, "newer than kube-apiserver"); refused != linked || restarts == linked {
				t.Errorf("linked %v: restarts %v, %+v", linked, restarts, work)
			}
		})
	}
}

// That a bundle's metadata have expired is a part of each message of its operation, also of that of
// its end, by another process.
func TestExpiredBundleIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		s.repo.Expires = time.Now().Add(-24 * time.Hour)
		s.add("v1.4.0", "program", nil)
		o := fromBundle(upgradeTo("v1.4.0"))
		const want = "its metadata expired on 1999-12-31: "
		if work, restarts := s.do(o); !restarts || work.Message != want+"the trial begins" {
			t.Fatalf("restarts %v, %+v", restarts, work)
		}
		if work, _ := s.do(o); work.Reason != v1alpha1.OperationConfirmed || work.Message != want+"the device is healthy with it" {
			t.Errorf("it ended with %+v", work)
		}
		for _, r := range s.reports {
			if !strings.HasPrefix(r.Message, want) || strings.Count(r.Message, want) > 1 {
				t.Errorf("reported %q", r.Message)
			}
		}
	})
}

// In a rescue session the version is judged by the cloud's protocols, not by those of this
// edgecore. Its trial needs a link, and goes back without one as any other.
func TestRescuedDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		s.linked, s.rescue = false, protocol.Window{Min: 98, Max: 99}
		s.add("v1.4.0", "program", func(t *artefactrepo.Target) { t.Protocol, t.ProtocolMin = 97, 96 })
		s.add("v9.0.0", "another", func(t *artefactrepo.Target) { t.Protocol, t.ProtocolMin = 99, 98 })
		if work, _ := s.do(operation(upgradeTo("v1.4.0"))); work.Reason != v1alpha1.OperationRefused || !strings.Contains(work.Message, "no version of the link's protocol") {
			t.Errorf("a version that the cloud does not speak: %+v", work)
		}
		o := operation(upgradeTo("v9.0.0"))
		o.Name = "two"
		if work, restarts := s.do(o); !restarts || work.Offline {
			t.Fatalf("%+v", work)
		}
		s.rescue = protocol.Window{} // no session at all
		if _, restarts := s.do(o); !restarts {
			t.Fatalf("a trial without a link: %+v", o.Work)
		}
		s.rescue = protocol.Window{Min: 98, Max: 99}
		s.do(o)
		if work := s.secondTrialWithoutALink(o); work.Reason != v1alpha1.OperationRolledBack || !strings.Contains(work.Message, "NoLink") {
			t.Errorf("the version before had a rescue session: %+v", work)
		}
		o.Name, o.Work, o.Spec.Retry = "three", nil, 1
		s.do(o)
		s.linked = true
		if work, _ := s.do(o); work.Reason != v1alpha1.OperationConfirmed {
			t.Errorf("with a link: %+v", work)
		}
	})
}

// The first upgrade of a device, whose program is the package's, takes a delta to that. A later one
// takes a delta to the program in its slot. The version of the package needs no upgrade.
func TestDeltaToTheRunningProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		programs := map[string][]byte{}
		for i, version := range []string{"v1.3.0", "v1.4.0", "v1.5.0"} {
			programs[version] = incompressible(64<<10, i)
			s.add(version, string(programs[version]), nil)
		}
		s.self = filepath.Join(s.dir, "edgecore")
		s.check(os.WriteFile(s.self, programs["v1.3.0"], 0o700))
		if work, _ := s.do(operation(upgradeTo("v1.3.0"))); work.Reason != v1alpha1.OperationUnchanged {
			t.Errorf("the version of the package: %+v", work)
		}
		for _, step := range [][2]string{{"v1.3.0", "v1.4.0"}, {"v1.4.0", "v1.5.0"}} {
			base, program := programs[step[0]], programs[step[1]]
			packed, err := artefactrepo.Delta(base, program)
			s.check(err)
			delta, err := s.repo.AddDelta(step[1], "amd64", base, packed, program, nil)
			s.check(err)
			o := operation(upgradeTo(step[1]))
			o.Name = step[1]
			if work, restarts := s.do(o); !restarts || !work.Upgrade.Delta || work.Upgrade.Fetched != delta.Length {
				t.Fatalf("from %s: %+v %+v", step[0], work, work.Upgrade)
			}
			if work, _ := s.do(o); work.Reason != v1alpha1.OperationConfirmed {
				t.Fatalf("from %s: %+v", step[0], work)
			}
			state, err := s.directory.Load()
			s.check(err)
			if got, err := os.ReadFile(s.directory.Program(state.Confirmed.Slot)); err != nil || !bytes.Equal(got, program) {
				t.Errorf("from %s: the slot has another program (%v)", step[0], err)
			}
		}
	})
}

// A delta to another program than the running one is not fetched, nor one whose base can't be read.
func TestWholeProgramWithoutItsBase(t *testing.T) {
	for name, self := range map[string]string{"another program": "edgecore", "not readable": "missing"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSystem(t)
				s.self = filepath.Join(s.dir, self)
				s.check(os.WriteFile(filepath.Join(s.dir, "edgecore"), []byte("built by somebody"), 0o700))
				base, program := incompressible(64<<10, 1), incompressible(64<<10, 2)
				s.add("v1.4.0", string(program), nil)
				packed, err := artefactrepo.Delta(base, program)
				s.check(err)
				_, err = s.repo.AddDelta("v1.4.0", "amd64", base, packed, program, nil)
				s.check(err)
				if work, restarts := s.do(operation(upgradeTo("v1.4.0"))); !restarts || work.Upgrade.Delta {
					t.Errorf("%+v %+v", work, work.Upgrade)
				}
			})
		})
	}
}

// incompressible is a program of which all versions but for their ends are alike.
func incompressible(size, version int) []byte {
	program := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{}).Read(program)
	return append(program, strings.Repeat(strconv.Itoa(version), version+1)...)
}

// unsteady is a link that breaks after some bytes of a program, and is back after some time.
type unsteady struct {
	artefact.Source
	after  int
	away   time.Duration
	back   time.Time
	opened []string
	began  []int64 // offsets of the streams of programs
}

func (u *unsteady) Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	if !strings.HasSuffix(name, ".zst") {
		u.opened = append(u.opened, name)
		return u.Source.Open(ctx, name, offset)
	}
	if time.Now().Before(u.back) {
		return nil, errors.New("there is no link")
	}
	u.back, u.began = time.Now().Add(u.away), append(u.began, offset)
	r, err := u.Source.Open(ctx, name, offset)
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(io.LimitReader(r, int64(u.after)), iotest.ErrReader(errors.New("the link is lost"))), r}, err
}

// A transfer that is interrupted continues where it was as soon as there is a link again, with the
// same metadata. A link that is away for longer, and one that brings hardly a byte, are left alone
// for the usual pause.
func TestInterruptedTransferContinues(t *testing.T) {
	for name, c := range map[string]struct {
		after  int
		away   time.Duration
		pauses int // in all
	}{
		"short cuts":          {16 << 10, 5 * time.Second, 0},
		"long cuts":           {16 << 10, 45 * time.Second, 4},
		"a few bytes at once": {1 << 10, 0, 64},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSystem(t)
				s.add("v1.4.0", string(incompressible(64<<10, 1)), nil)
				link := &unsteady{Source: artefact.Files(s.repo.Dir), after: c.after, away: c.away}
				s.cloud = link
				o, pauses := operation(upgradeTo("v1.4.0")), 0
				for {
					work, restarts := s.do(o)
					if restarts {
						break
					}
					if pauses++; work.Ended != "" || pauses > 100 {
						t.Fatalf("after %d pauses: %+v", pauses, work)
					}
					time.Sleep(time.Until(work.Next))
				}
				if pauses != c.pauses {
					t.Errorf("%d pauses, want %d", pauses, c.pauses)
				}
				for i, offset := range link.began {
					if offset != int64(i*c.after) {
						t.Errorf("stream %d begins at %d, want %d", i, offset, i*c.after)
					}
				}
				if len(link.began) < 5 {
					t.Errorf("it was not interrupted: %v", link.began)
				}
				if c.pauses == 0 && len(link.opened) != len(slices.Compact(slices.Sorted(slices.Values(link.opened)))) {
					t.Errorf("metadata were fetched again: %v", link.opened)
				}
			})
		})
	}
}

func TestDowngradeThatIsAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		s.version = "v2.0.0"
		s.add("v1.4.0", "program", nil)
		spec := upgradeTo("v1.4.0")
		spec.Upgrade.AllowDowngrade = true
		if work, restarts := s.do(operation(spec)); !restarts || !work.Tried {
			t.Errorf("%+v", work)
		}
	})
}

// newTrial makes a system that restarts for the trial of v1.4.0.
func newTrial(t *testing.T) (*system, *drain.Operation) {
	t.Helper()
	s := newSystem(t)
	s.add("v1.4.0", "program", nil)
	o := operation(upgradeTo("v1.4.0"))
	if _, restarts := s.do(o); !restarts {
		t.Fatalf("%+v", o.Work)
	}
	return s, o
}

func TestConfigurationIsAnOverlay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		configure := func(name, patch string) *drain.Operation {
			o := operation(v1alpha1.NodeOperationSpec{Operation: v1alpha1.OperationConfig, Config: &v1alpha1.ConfigSpec{Patch: patch}})
			o.Name = name
			return o
		}
		for _, bad := range []string{"modules: {drain: {hooks: {reboot: x}}}", "a: b: c", "log: {a: 1, a: 2}"} {
			if work, _ := s.do(configure("bad", bad)); work.Reason != v1alpha1.OperationRefused {
				t.Errorf("%s: %+v", bad, work)
			}
		}
		o := configure("good", "log: {verbosity: 3}")
		if _, restarts := s.do(o); !restarts {
			t.Fatalf("%+v", o.Work)
		}
		if work, _ := s.do(o); work.Reason != v1alpha1.OperationConfirmed {
			t.Fatalf("%+v", work)
		}
		state, err := s.directory.Load()
		s.check(err)
		if raw, err := s.directory.ReadOverlay(state.Confirmed.Overlay); string(raw) != `{"log":{"verbosity":3}}` {
			t.Errorf("the overlay is %q, %v", raw, err)
		}
		s.check(os.WriteFile(filepath.Join(s.directory.Overlays(), "earlier"), nil, 0o600))
		if work, _ := s.do(configure("same", "{log: {verbosity: 3}}")); work.Reason != v1alpha1.OperationUnchanged {
			t.Errorf("the same: %+v", work)
		}
		if left, err := os.ReadDir(s.directory.Overlays()); err != nil || len(left) != 1 || left[0].Name() != state.Confirmed.Overlay {
			t.Errorf("overlays: %v, %v", left, err)
		}
		if _, restarts := s.do(configure("none", "{}")); !restarts {
			t.Error("{} takes the overlay back")
		}
	})
}

// disk is this machine's, and may be full.
type disk struct {
	launch.System
	full bool
}

func (d *disk) WriteFile(name string, data []byte, mode fs.FileMode) error {
	if d.full {
		return syscall.ENOSPC
	}
	return d.System.WriteFile(name, data, mode)
}

// A delta does not apply to a program that the disk has changed: the whole program is fetched then.
func TestDeltaToADamagedProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		base, program := incompressible(64<<10, 1), incompressible(64<<10, 2)
		s.add("v1.3.5", string(base), nil)
		o := operation(upgradeTo("v1.3.5"))
		s.do(o)
		s.do(o)
		s.add("v1.4.0", string(program), nil)
		packed, err := artefactrepo.Delta(base, program)
		s.check(err)
		_, err = s.repo.AddDelta("v1.4.0", "amd64", base, packed, program, nil)
		s.check(err)
		state, err := s.directory.Load()
		s.check(err)
		s.check(os.WriteFile(s.directory.Program(state.Confirmed.Slot), make([]byte, len(base)), 0o700))
		o = operation(upgradeTo("v1.4.0"))
		o.Name = "two"
		if work, restarts := s.do(o); !restarts || work.Upgrade.Delta {
			t.Fatalf("restarts %t, %+v, %+v", restarts, work, work.Upgrade)
		}
		if work, _ := s.do(o); work.Reason != v1alpha1.OperationConfirmed {
			t.Errorf("%+v", work)
		}
		if left, _ := filepath.Glob(filepath.Join(s.dir, "artefacts", "*.part")); len(left) > 0 {
			t.Errorf("files are left: %v", left)
		}
	})
}
