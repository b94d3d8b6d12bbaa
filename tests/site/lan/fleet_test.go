package lan_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/artefactrepo"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

const (
	slotsDir = "/var/lib/skerry/bin"
	// supervised starts a program again when it ends, as systemd does, until it is told to end.
	supervised = `trap 'kill $c 2>/dev/null; wait $c; exit' TERM; while :; do "$@" & c=$!; wait $c; sleep 0.2; done`
)

// fleet is the three edges as a package runs them, by skerry-launch under a supervisor, and a
// repository of versions that they trust.
type fleet struct {
	*system
	repo *artefactrepo.Repository
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{system: newSystem(t)}
	var err error
	f.repo, err = artefactrepo.New(t.TempDir())
	f.Check(err)
	root, err := os.ReadFile(f.repo.Root())
	f.Check(err)
	nodes := []string{"edge1", "edge2", "edge3"}
	bin := filepath.Join(f.Root, "bin")
	launched := []string{"/bin/sh", "-c", supervised, "supervisor", filepath.Join(bin, "skerry-launch"), "--dir", slotsDir, "--version-file", "", "--", filepath.Join(bin, "edgecore")}
	t.Cleanup(func() {
		ctx := context.Background()
		f.Must(f.Run(ctx, "kubectl", "delete", "nodeoperations", "--all"))
		for _, node := range nodes {
			f.Check(f.Trial.Replace(ctx, node, "edgecore", nil))
			f.Check(f.Trial.Stop(ctx, node, "edgecore"))
			for _, dir := range []string{slotsDir, "/var/lib/skerry/artefacts", "/etc/skerry/keys.d"} {
				f.Check(os.RemoveAll(f.path(node, dir)))
			}
			f.Check(f.Trial.Start(ctx, node, "edgecore")) // the next test waits for it
		}
		for _, host := range options().Replicas() {
			f.Check(os.RemoveAll(f.path(host, trial.ArtefactsDir)))
		}
	})
	for _, node := range nodes {
		keys := f.path(node, "/etc/skerry/keys.d")
		f.Check(os.MkdirAll(keys, 0o755))
		f.Check(os.WriteFile(filepath.Join(keys, "root.json"), root, 0o644))
		f.Check(f.Trial.Replace(t.Context(), node, "edgecore", launched))
		f.Check(f.Trial.Stop(t.Context(), node, "edgecore"))
		f.Start(node, "edgecore")
	}
	for _, node := range nodes {
		f.WaitReady(node, true)
	}
	return f
}

// path is where a file of a host is on this machine.
func (s *system) path(host, file string) string {
	s.T.Helper()
	h, err := s.Trial.Host(host)
	s.Check(err)
	return filepath.Join(h.Root(), file)
}

// add publishes a version of 8 MB: today's edgecore, with noise that nothing compresses.
func (f *fleet) add(version string) artefactrepo.Target {
	f.T.Helper()
	noise := make([]byte, 8<<20)
	_, _ = rand.NewChaCha8([32]byte{byte(len(version)), version[len(version)-1]}).Read(noise)
	program := append([]byte("#!/bin/sh\nexec "+filepath.Join(f.Root, "bin", "edgecore")+" \"$@\"\n"), noise...)
	t, err := f.repo.Add(version, runtime.GOARCH, program, nil)
	f.Check(err)
	for _, host := range options().Replicas() {
		f.Check(trial.CopyArtefacts(f.path(host, "/"), f.repo.Dir))
	}
	return t
}

// peersOf are the statuses that a device has of the others, and the bytes of programs that it sent.
func (f *fleet) peersOf(ctx context.Context, node string) (statuses map[string]string, sent int64, err error) {
	var s struct {
		Site struct {
			Peers []struct{ Node, Status string }
		}
		Programs struct {
			Sent int64 `json:"sentBytes"`
		}
	}
	if err := f.AskSocket(ctx, node, &s); err != nil {
		return nil, 0, err
	}
	statuses = map[string]string{}
	for _, p := range s.Site.Peers {
		statuses[p.Node] = p.Status
	}
	return statuses, s.Programs.Sent, nil
}

// waitMet waits until a device has met both others.
func (f *fleet) waitMet(node string) {
	f.T.Helper()
	f.WaitFor(node+" to meet the others", func(ctx context.Context) error {
		all, _, err := f.peersOf(ctx, node)
		if err != nil {
			return err
		}
		met := 0
		for _, status := range all {
			if status == "Met" {
				met++
			}
		}
		if met != 2 {
			return fmt.Errorf("it has %v", all)
		}
		return nil
	})
}

// uplinkBytes counts what crossed a device's link to the cloud.
func (f *fleet) uplinkBytes(node string) int64 {
	f.T.Helper()
	h, err := f.Trial.Host(node)
	f.Check(err)
	links, err := h.Netlink()
	f.Check(err)
	defer links.Close()
	wan, err := links.LinkByName("wan0")
	f.Check(err)
	counted := wan.Attrs().Statistics
	return int64(counted.RxBytes + counted.TxBytes)
}

// upgrade brings a version to a device, and returns its operation's status and the bytes that
// crossed the device's link.
func (f *fleet) upgrade(node string, target artefactrepo.Target, version string) (u v1alpha1.UpgradeStatus, crossed int64) {
	f.T.Helper()
	f.waitMet(node)
	name := node + "-" + version
	before, began := f.uplinkBytes(node), time.Now()
	f.Apply("default", fmt.Sprintf("apiVersion: skerry.io/v1alpha1\nkind: NodeOperation\nmetadata: {name: %s}\nspec: {nodeName: %s, operation: Upgrade, upgrade: {version: %s}}\n", name, node, version))
	var o v1alpha1.NodeOperation
	f.WaitFor("the end of "+name, func(ctx context.Context) error {
		out, err := f.Run(ctx, "kubectl", "get", "nodeoperation", name, "-o", "json")
		if err != nil {
			return err
		}
		o = v1alpha1.NodeOperation{}
		if err := json.Unmarshal([]byte(out), &o); err != nil {
			return err
		}
		if o.Status.CompletedAt == nil {
			status, err := json.Marshal(o.Status)
			return errors.Join(err, fmt.Errorf("its status is %s", status))
		}
		return nil
	})
	crossed = f.uplinkBytes(node) - before
	raw, err := os.ReadFile(f.path(node, slotsDir+"/state.0"))
	f.Check(err)
	if o.Status.Upgrade == nil || !strings.Contains(string(raw), `"confirmed":{"slot":"a","version":"`+version) && !strings.Contains(string(raw), `"confirmed":{"slot":"b","version":"`+version) {
		f.T.Fatalf("%s: %+v, and skerry-launch has %s", name, o.Status, raw)
	}
	u = *o.Status.Upgrade
	f.T.Logf("%s: %v; %d bytes crossed the link; %d of %d bytes fetched, fromSite=%v, for a file of %d", name, time.Since(began).Round(time.Second), crossed, u.Fetched, u.Size, u.FromSite, target.Length)
	return u, crossed
}

// damage changes a byte of the program that a device runs and has for others.
func (f *fleet) damage(node, digest string) {
	f.T.Helper()
	for _, slot := range []string{"a", "b"} {
		file := f.path(node, slotsDir+"/"+slot+"/edgecore")
		raw, err := os.ReadFile(file)
		if err != nil || artefactrepo.Digest(raw) != digest {
			continue
		}
		raw[len(raw)-1] ^= 1 // of the noise
		f.Check(os.WriteFile(file+".next", raw, 0o700))
		f.Check(os.Rename(file+".next", file))
		return
	}
	f.T.Fatalf("%s has no program %s", node, digest)
}

// notMet watches a device's status of another until stop is called, which returns those that were
// not Met.
func (f *fleet) notMet(node, other string) (stop func() []string) {
	ctx, cancel := context.WithCancel(f.T.Context())
	seen := make(chan []string, 1)
	go func() {
		var all []string
		for ctx.Err() == nil {
			if statuses, _, err := f.peersOf(ctx, node); err == nil && statuses[other] != "Met" {
				all = append(all, statuses[other])
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
		seen <- all
	}()
	return func() []string {
		cancel()
		return <-seen
	}
}

// Three devices of a site are upgraded. The first takes the program over its link, the others take
// it from the devices that have it: little crosses their links, and no device loses sight of one
// that sends. A device whose program is damaged sends wrong bytes: the next one notices, and is
// upgraded over its link; a third prefers a device whose bytes are right.
func TestFleet_26_ProgramComesFromTheSite(t *testing.T) {
	f := newFleet(t)
	fromLink := func(node string, target artefactrepo.Target, version string) {
		t.Helper()
		u, crossed := f.upgrade(node, target, version)
		if u.FromSite || u.Fetched != target.Length || crossed < target.Length {
			t.Errorf("%s: %d bytes crossed the link, the status is %+v", node, crossed, u)
		}
	}
	fromSite := func(node string, target artefactrepo.Target, version string) {
		t.Helper()
		u, crossed := f.upgrade(node, target, version)
		if !u.FromSite || u.Fetched != target.Size || crossed > target.Length/4 {
			t.Errorf("%s: %d bytes crossed the link, the status is %+v", node, crossed, u)
		}
	}
	first := f.add("v9.26.0")
	fromLink("edge1", first, "v9.26.0")
	lost := f.notMet("edge3", "edge1")
	fromSite("edge2", first, "v9.26.0")
	if all := lost(); len(all) > 0 {
		t.Errorf("while edge1 sent its program, edge3 saw it as %v", all)
	}
	_, sent, err := f.peersOf(t.Context(), "edge1")
	f.Check(err)
	if sent != first.Size {
		t.Errorf("edge1 has sent %d bytes of a program of %d", sent, first.Size)
	}
	t.Log(f.Must(f.status("edge1")))
	fromSite("edge3", first, "v9.26.0")

	second := f.add("v9.26.1")
	fromLink("edge1", second, "v9.26.1")
	f.damage("edge1", second.Digest)
	fromLink("edge2", second, "v9.26.1")
	if _, sent, err := f.peersOf(t.Context(), "edge1"); err != nil || sent != second.Size {
		t.Errorf("edge1 has sent %d wrong bytes, of %d: %v", sent, second.Size, err)
	}
	fromSite("edge3", second, "v9.26.1")
}

// status is what `edgecore status` prints.
func (f *fleet) status(node string) (string, error) {
	var out, errs strings.Builder
	_, err := f.Trial.Exec(f.T.Context(), node, trial.Streams{Out: &out, Err: &errs}, nil, filepath.Join(f.Root, "bin", "edgecore"), "status")
	return out.String() + errs.String(), err
}
