package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// flightRecord is a line of `edgecore recorder -o json`.
type flightRecord struct {
	Time                              time.Time
	Boot, Kind, Object, Reason, Cause string
}

// recorded reads the flight recorder of edge1 by edgecore's command.
func (s *system) recorded(ctx context.Context) (all []flightRecord, err error) {
	s.T.Helper()
	out, errs, code := s.onDevice(ctx, "edge1", os.Environ(), nil, "recorder", "-o", "json")
	if code != 0 {
		return nil, fmt.Errorf("edgecore recorder: %d: %s", code, errs)
	}
	return all, json.Unmarshal([]byte(out), &all)
}

// waitRecorded waits for a record since a time.
func (s *system) waitRecorded(since time.Time, kind, object, reason, cause string) {
	s.T.Helper()
	s.WaitFor(fmt.Sprintf("the record %s %s %s %q", kind, object, reason, cause), func(ctx context.Context) error {
		all, err := s.recorded(ctx)
		if err != nil {
			return err
		}
		for _, r := range all {
			if !r.Time.Before(since) && r.Kind == kind && strings.Contains(r.Object, object) && r.Reason == reason && strings.Contains(r.Cause, cause) {
				return nil
			}
		}
		return fmt.Errorf("there are %+v", all[max(0, len(all)-8):])
	})
}

// A kill -9, a power cut, an OOM, an eviction, a cut and a reboot in order: each is recorded with
// its cause, and the recorder is read with edgecore dead and the link down.
func TestOperate_11_RecorderOverKillPowerCutAndOOM(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	begin := time.Now().Add(-time.Second).Truncate(time.Second) // the kubelet's times have no fractions
	s.Apply(ns, `
apiVersion: v1
kind: Pod
metadata: {name: hog, labels: {app: hog}}
spec:
  nodeName: edge1
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - {name: hog, image: "skerry.local/sample:1", imagePullPolicy: Never, args: [hog], resources: {limits: {memory: 48Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: full, labels: {app: full}}
spec:
  nodeName: edge1
  terminationGracePeriodSeconds: 1
  volumes: [{name: small, emptyDir: {sizeLimit: 1Mi}}]
  containers:
  - {name: full, image: "skerry.local/sample:1", imagePullPolicy: Never, volumeMounts: [{name: small, mountPath: /small}]}
`)
	full := s.WaitPods(ns, "app=full", "edge1", 1)[0]
	s.Check(os.WriteFile(s.path("edge1", filepath.Join("/var/lib/kubelet/pods", string(full.UID), "volumes/kubernetes.io~empty-dir/small/f")), make([]byte, 4<<20), 0o644))
	s.waitRecorded(begin, "OOM", ns+"/hog/hog", "OOMKilled", "exit code 137 (signal 9")
	s.waitRecorded(begin, "Eviction", ns+"/full", "Evicted", "exceeds")

	s.Cut("edge1")
	s.waitRecorded(begin, "Link", "", "Down", "")

	killed := time.Now()
	s.Kill("edge1", "edgecore")
	// It is dead: the command alone reads the records of before.
	s.waitRecorded(begin, "OOM", ns+"/hog/hog", "OOMKilled", "exit code 137")
	s.Start("edge1", "edgecore")
	s.waitRecorded(killed, "Start", "edgecore", "Killed", "ended without being stopped")

	boot := time.Now()
	s.Reboot("edge1", true) // the power goes
	s.waitRecorded(boot, "Boot", "", "PowerLoss", "power cut")
	// With its kubelet edgecore watches logind: a shutdown before that is one without an
	// announcement.
	s.waitRecorded(boot, "Event", "edge1", "Rebooted", "")

	orderly := time.Now()
	s.Check(s.Trial.RebootOrderly(t.Context(), "edge1", true))
	s.waitRecorded(orderly, "Shutdown", "", "Announced", "logind")
	s.waitRecorded(orderly, "Boot", "", "Shutdown", "in order")

	up := time.Now()
	s.Heal("edge1")
	s.waitRecorded(up, "Link", "", "Up", "to ")

	// Each once, and in the order in which it happened.
	all, err := s.recorded(t.Context())
	s.Check(err)
	var ooms, boots int
	for _, r := range all {
		if !r.Time.Before(begin) && r.Kind == "OOM" && strings.HasPrefix(r.Object, ns) {
			ooms++
		}
		if !r.Time.Before(begin) && r.Kind == "Boot" {
			boots++
		}
	}
	if ooms != 1 || boots != 2 {
		t.Errorf("%d OOMs and %d boots are recorded: %+v", ooms, boots, all)
	}
	kinds := slices.IndexFunc(all, func(r flightRecord) bool { return r.Kind == "Boot" && r.Reason == "PowerLoss" })
	if later := slices.IndexFunc(all, func(r flightRecord) bool { return r.Kind == "Boot" && r.Reason == "Shutdown" }); later < kinds {
		t.Errorf("the order is wrong: %+v", all)
	}
	out, _, code := s.onDevice(t.Context(), "edge1", os.Environ(), nil, "recorder", "--kind", "Boot,OOM", "--last", "3")
	if code != 0 || !strings.Contains(out, "PowerLoss") || strings.Contains(out, "Link") {
		t.Errorf("%d: %s", code, out)
	}
}
