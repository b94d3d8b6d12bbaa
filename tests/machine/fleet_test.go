package machine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/artefactrepo"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/trial"
	"github.com/skerry-io/skerry/tests/machine"
)

// TestFleet_25: systemd, its watchdog and apt are Debian's own. An upgrade restarts no container of
// ten pods, and its process notifies the watchdog. A version that ends, and at its second start
// hangs, is killed by the watchdog and rolled back. While another one hangs, apt installs a newer
// package, which takes precedence.
func TestFleet_25_RealMachineIsUpgraded(t *testing.T) {
	f := newFleet(t)
	f.addPods(6, idlePods(6), "deployment/idle")
	changed, before := f.follow(), f.running()
	unit := f.unit("NRestarts", "MainPID")

	target := f.add("v8.0.0", slices.Concat(f.program, []byte("v8.0.0")))
	o := f.operate("up", "v8.0.0", "")
	if u := o.Status.Upgrade; reason(o) != v1alpha1.OperationConfirmed || u.Digest != target.Digest || u.Starts != 1 {
		t.Fatalf("the upgrade: %+v", o.Status)
	}
	f.same(before, "an upgrade")
	f.notified()
	if now := f.unit("NRestarts", "MainPID"); now != unit {
		t.Errorf("systemd had started edgecore:\n%s, and after an upgrade:\n%s", unit, now)
	}
	t.Logf("the link:\n%s", f.run(`journalctl --boot --unit=edgecore --output=short-unix --no-pager | grep -E 'Executing skerry-launch|Session opened' | tail -n 2 | cut -c -120`))

	const second = `n=$(cat /run/starts 2>/dev/null || echo 0); echo $((n + 1)) >/run/starts; [ $n != 1 ] || exec sleep 100000; exit 1`
	f.goesBack("ends-and-hangs", script(second), "EndedEarly: it ended early 3 times", "3m")
	f.same(before, "a version that ends and hangs")
	if long() {
		f.badVersions(before)
	}

	f.installDuringTrial()
	f.same(before, "a package that was installed during a trial")
	f.notified()
	f.unchanged(changed)
}

// badVersions are further versions that go back. Each but the first has edgecore started twice.
func (f *fleet) badVersions(before []container) {
	f.T.Helper()
	other := func(change string) []byte {
		return script("sed '" + change + "' /etc/skerry/edgecore.yaml >/run/other.yaml; exec /usr/bin/edgecore --config /run/other.yaml")
	}
	const site = "/etc/skerry/check/required.d/10-site"
	for _, c := range []struct {
		name    string
		program []byte
		want    string
		timeout string // of its health
	}{
		{"no-program", []byte("this is no program"), "Unexecutable", "3m"},
		{"hang", script("exec sleep 100000"), "EndedEarly", "3m"},
		{"no-link", other("s/" + lab.Cloud().String() + "/192.0.2.1/"), "NoLink", "1m"}, // twice
		{"never-ready", other(`s,^\( *\)evictionPressure,\1containerRuntimeEndpoint: unix:///run/none.sock\n&,`), "not Ready", "3m"},
		{"required-check", slices.Concat(f.program, []byte("check")), "check 10-site ended with 1", "3m"},
	} {
		if c.name == "required-check" {
			f.run("mkdir -p " + filepath.Dir(site) + "; printf '#!/bin/sh\nexit 1\n' >" + site + "; chmod 755 " + site)
		}
		f.goesBack(c.name, c.program, c.want, c.timeout)
		f.same(before, "version "+c.name)
	}
	f.run("rm -r " + filepath.Dir(filepath.Dir(site)))
}

// installDuringTrial has apt install a newer package while a version that hangs is tried.
func (f *fleet) installDuringTrial() {
	f.T.Helper()
	own, err := machine.ProgramVersion(f.T.Context(), f.Root)
	f.Check(err)
	newer := own[:1] + "9" + own[2:]
	of := machine.Package{Root: f.Root, Images: filepath.Join(f.Dir, "images"), Version: newer, Revision: 3}
	f.Check(of.Make(f.T.Context(), filepath.Join(f.guest.Share(), "newer.deb")))
	f.add("v8.9.0", script("exec sleep 100000"))
	f.begin("superseded", "v8.9.0", "")
	f.await("the trial", `until grep -q '"trial":{"program":{"slot":"[ab]","version":"v8.9.0"' `+slotsDir+`/state.0; do sleep 1; done
		apt-get install --quiet --yes /host/newer.deb`)
	if o := f.ended("superseded"); reason(o) != "Superseded" || !strings.Contains(o.Status.Conditions[0].Message, newer) {
		f.T.Errorf("the trial: %+v", o.Status)
	}
	f.await("the package's edgecore", "until edgecore status | grep -q '^edgecore *running, "+newer+" '; do sleep 3; done")
}

const slotsDir = "/var/lib/skerry/bin"

// fleet is the machine, and a repository of versions that it trusts.
type fleet struct {
	*system
	repo    *artefactrepo.Repository
	program []byte // edgecore as it was built
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{system: newSystem(t)}
	var err error
	f.repo, err = artefactrepo.New(t.TempDir())
	f.Check(err)
	f.program, err = os.ReadFile(filepath.Join(f.Root, "bin", "edgecore"))
	f.Check(err)
	root, err := os.ReadFile(f.repo.Root())
	f.Check(err)
	f.Check(os.WriteFile(filepath.Join(f.guest.Share(), "root.json"), root, 0o644))
	f.run("install -D --mode=644 /host/root.json /etc/skerry/keys.d/root.json")
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if _, err := f.Run(ctx, "kubectl", "delete", "nodeoperations", "--all"); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(f.artefacts()); err != nil {
			t.Error(err)
		}
	})
	return f
}

// artefacts is the directory from which the cloud serves versions.
func (f *fleet) artefacts() string {
	f.T.Helper()
	h, err := f.Trial.Host(trial.Cloud)
	f.Check(err)
	return filepath.Join(h.Root(), trial.ArtefactsDir)
}

// add publishes a version.
func (f *fleet) add(version string, program []byte) artefactrepo.Target {
	f.T.Helper()
	target, err := f.repo.Add(version, runtime.GOARCH, program, nil)
	f.Check(err)
	f.Check(os.RemoveAll(f.artefacts()))
	f.Check(os.CopyFS(f.artefacts(), os.DirFS(f.repo.Dir)))
	return target
}

// script is a version that is a shell script.
func script(text string) []byte { return []byte("#!/bin/sh\n" + text + "\n") }

// begin asks for a version.
func (f *fleet) begin(name, version, more string) {
	f.T.Helper()
	f.Apply("default", fmt.Sprintf("apiVersion: skerry.io/v1alpha1\nkind: NodeOperation\nmetadata: {name: %s}\nspec: {nodeName: %s, operation: Upgrade, upgrade: {version: %q}%s}\n", name, node, version, more))
}

// ended waits for an operation to end.
func (f *fleet) ended(name string) *v1alpha1.NodeOperation {
	f.T.Helper()
	f.Kubectl("wait", "nodeoperation/"+name, "--for=jsonpath={.status.completedAt}", "--timeout="+patience.String())
	o := &v1alpha1.NodeOperation{}
	f.Check(json.Unmarshal([]byte(f.Kubectl("get", "nodeoperation", name, "-o", "json")), o))
	return o
}

func (f *fleet) operate(name, version, more string) *v1alpha1.NodeOperation {
	f.T.Helper()
	f.begin(name, version, more)
	return f.ended(name)
}

// reason is that of an operation's condition.
func reason(o *v1alpha1.NodeOperation) string { return o.Status.Conditions[0].Reason }

// goesBack tries a bad version, which is rolled back, and rejected from then on.
func (f *fleet) goesBack(name string, program []byte, want, timeout string) {
	f.T.Helper()
	version := "v8.1.0-" + name
	f.add(version, program)
	if o := f.operate(name, version, ", healthTimeout: "+timeout); reason(o) != v1alpha1.OperationRolledBack || !strings.Contains(o.Status.Conditions[0].Message, want) {
		f.T.Errorf("%s: want %s by %q, got %+v", name, v1alpha1.OperationRolledBack, want, o.Status)
	}
	if o := f.operate(name+"-again", version, ""); reason(o) != v1alpha1.OperationRejected {
		f.T.Errorf("%s again: %+v", name, o.Status)
	}
}

// unit is what systemd knows of edgecore's unit.
func (f *fleet) unit(properties ...string) string {
	f.T.Helper()
	return strings.TrimSpace(f.run("systemctl show edgecore --property=" + strings.Join(properties, ",")))
}

// notified fails where edgecore does not notify systemd's watchdog, three times a minute.
func (f *fleet) notified() {
	f.T.Helper()
	const notification = "systemctl show edgecore --property=WatchdogTimestampMonotonic"
	if out := f.run("last=$(" + notification + "); for n in $(seq 45); do sleep 1; [ $last = $(" + notification + ") ] || { echo again; break; }; done"); out == "" {
		f.T.Error("edgecore does not notify the watchdog")
	}
}
