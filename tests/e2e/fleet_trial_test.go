package e2e_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/artefactrepo"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// Each of these versions goes back, the device runs the one before, and its operation has the
// reason.
func TestFleet_06_BadVersionsGoBack(t *testing.T) {
	f := newSystem(t).fleet()
	edgecore := filepath.Join(f.Root, "bin", "edgecore")
	config, err := os.ReadFile(f.path("edge1", "/etc/skerry/edgecore.yaml"))
	f.Check(err)
	without := strings.ReplaceAll(string(config), lab.Cloud().String(), "192.0.2.1")
	f.Check(os.WriteFile(f.path("edge1", "/etc/skerry/nolink.yaml"), []byte(without), 0o644))
	var settings map[string]any
	f.Check(yaml.Unmarshal(config, &settings))
	f.Check(unstructured.SetNestedField(settings, "unix:///run/none.sock", "modules", "edged", "kubelet", "containerRuntimeEndpoint"))
	never, err := yaml.Marshal(settings)
	f.Check(err)
	f.Check(os.WriteFile(f.path("edge1", "/etc/skerry/neverready.yaml"), never, 0o644))
	for name, c := range map[string]struct {
		program []byte
		check   string
		want    string
		timeout string // of its health
		hangs   bool
		logs    bool // it is an edgecore, whose log its operation reports
	}{
		"crash-loop":     {program: script("exit 1"), want: "EndedEarly"},
		"no-program":     {program: []byte("this is no program"), want: "Unexecutable"},
		"hang":           {program: script("exec sleep 100000"), want: "EndedEarly", hangs: true},
		"no-link":        {program: script("exec " + edgecore + " --config /etc/skerry/nolink.yaml"), want: "NoLink", timeout: "15s", logs: true},
		"never-ready":    {program: script("exec " + edgecore + " --config /etc/skerry/neverready.yaml"), want: "the node is not Ready by this process", timeout: "25s", logs: true},
		"required-check": {program: f.another("check"), check: "exit 1", timeout: "45s", want: "check 10-site ended with 1", logs: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fleet{system: &system{f.System}, repo: f.repo, program: f.program}
			version := "v9.1.0-" + name
			target := f.add(version, c.program, nil)
			if c.check != "" {
				dir := f.path("edge1", requires)
				f.Check(os.MkdirAll(dir, 0o755))
				f.Check(os.WriteFile(filepath.Join(dir, "10-site"), script(c.check), 0o755))
				t.Cleanup(func() { _ = os.RemoveAll(dir) })
			}
			f.upgrade(name, version, ", healthTimeout: "+cmp.Or(c.timeout, "1m"))
			if c.hangs {
				f.watchdog(target)
			}
			o := f.waitOperation(name, "failed", ended)
			if !isDone(v1alpha1.OperationRolledBack)(o) || !strings.Contains(o.Status.Conditions[0].Message, c.want) {
				t.Errorf("want %s by %s, got %+v", v1alpha1.OperationRolledBack, c.want, o.Status.Conditions)
			}
			if logs := len(o.Status.Output) > 0; logs != c.logs {
				t.Errorf("the operation has the log %q", o.Status.Output)
			}
			if s := f.slots(); s.Confirmed.Digest == target.Digest || s.Trial.Digest != "" {
				t.Errorf("the slots are %+v", s)
			}
			f.WaitReady("edge1", true)
			f.upgrade(name+"-2", version, "")
			if o := f.waitOperation(name+"-2", "rejected", ended); !isDone(v1alpha1.OperationRejected)(o) {
				t.Errorf("the same program again: %+v", o.Status.Conditions)
			}
		})
	}
}

// watchdog kills a trial that hangs, as systemd does, until it is not started again.
func (f *fleet) watchdog(target artefactrepo.Target) {
	f.T.Helper()
	kills := 0
	f.WaitFor("three starts of the trial", func(ctx context.Context) error {
		if kills == 3 {
			return nil
		}
		code, err := f.Trial.Exec(ctx, "edge1", trial.Streams{}, nil, "pkill", "-KILL", "-f", "sleep 100000")
		if err == nil && code == 0 {
			kills++
		}
		return errors.Join(err, fmt.Errorf("%d kills", kills))
	})
}

// The network is down while a version is tried: the one before has no link either, so the version
// is not blamed, and it is confirmed once there is a link.
func TestFleet_07_NetworkDownIsNoVerdict(t *testing.T) {
	f := newSystem(t).fleet()
	target := f.add("v9.2.0", f.another("v9.2.0"), nil)
	f.upgrade("down", "v9.2.0", ", healthTimeout: 45s")
	f.WaitFor("the fetch to end", func(context.Context) error {
		if _, err := os.Stat(f.path("edge1", slotsDir+"/a/edgecore")); err != nil {
			return err
		}
		return nil
	})
	f.Cut("edge1")
	f.WaitFor("the trial to go back uncounted", func(context.Context) error {
		if s := f.slots(); s.Trial.Digest != "" || len(s.Rejected) > 0 {
			return fmt.Errorf("%+v", s)
		}
		if out, _, complaint := f.edgecore("edge1", "operation", "list"); !strings.Contains(out, "the network was down during the trial") {
			return errors.New(out + complaint)
		}
		return nil
	})
	f.Heal("edge1")
	if o := f.waitOperation("down", "confirmed", ended); !isDone(v1alpha1.OperationConfirmed)(o) {
		t.Errorf("with a link again: %+v", o.Status.Conditions)
	}
	if s := f.slots(); s.Confirmed.Digest != target.Digest {
		t.Errorf("the slots are %+v", s)
	}
}
