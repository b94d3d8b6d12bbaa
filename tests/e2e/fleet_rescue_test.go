package e2e_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/edge/artefactrepo"
	"github.com/skerry-io/skerry/tests/cluster/binary"
)

// A device that runs its pods and speaks another version of the protocol than the cloud, as a
// release of long ago, gets today's edgecore by a rescue session, as a NodeOperationSet has it:
// skerry-launch starts it, the Node is Ready again, and no container restarts.
func TestFleet_02_OldDeviceWithPodsIsRescued(t *testing.T) {
	f := newSystem(t).fleet()
	ns := f.Namespace()
	f.Apply(ns, strings.Replace(samplePod("stays", "edge1"), "spec:\n", "spec:\n  tolerations: [{operator: Exists}]\n", 1))
	before := containers(f.WaitPods(ns, "app=stays", "edge1", 1))
	built, err := binary.Build(t.Context(), f.Root, "hollowedge", "skerry-launch")
	f.Check(err)
	const old = "/var/lib/skerry/old-edgecore" // all of edgecore, with its kubelet, as edgecore.yaml has it
	t.Cleanup(func() { _ = os.Remove(f.path("edge1", old)) })
	f.Check(os.WriteFile(f.path("edge1", old), script("exec "+built[0]+` --protocol 1 --keys /etc/skerry/keys.d --socket /run/stand-in.sock "$@"`), 0o755))
	f.Check(f.Trial.Replace(t.Context(), "edge1", "edgecore", []string{"/bin/sh", "-c", supervised, "supervisor", built[1], "--dir", slotsDir, "--version-file", "", "--", old}))
	f.Check(f.Trial.Stop(t.Context(), "edge1", "edgecore"))
	f.Start("edge1", "edgecore")
	f.WaitFor("a rescue session", func(context.Context) error {
		log, err := os.ReadFile(f.Trial.LogPath("edge1", "edgecore"))
		if err == nil && !strings.Contains(string(log), "the link is for an upgrade alone") {
			err = fmt.Errorf("the log ends with %s", log[max(0, len(log)-500):])
		}
		return err
	})
	f.WaitReady("edge1", false) // without a Lease
	target := f.add("v9.2.0", f.another("v9.2.0"), artefactrepo.OfThisRelease)
	f.Apply("default", `apiVersion: skerry.io/v1alpha1
kind: NodeOperationSet
metadata: {name: rescue}
spec:
  template: {operation: Upgrade, upgrade: {version: v9.2.0}}
  nodeSelector: {matchLabels: {kubernetes.io/hostname: edge1}}
`)
	f.waitSet("rescue", doneColumn, "1/1")
	if s := f.slots(); s.Confirmed.Digest != target.Digest || s.Confirmed.Slot == "" {
		t.Errorf("the confirmed program is %+v", s.Confirmed)
	}
	f.WaitReady("edge1", true)
	f.waitLinked("edge1")
	if after := containers(f.WaitPods(ns, "app=stays", "edge1", 1)); after["stays"] != before["stays"] {
		t.Errorf("the container was %s, is %s", before["stays"], after["stays"])
	}
}
