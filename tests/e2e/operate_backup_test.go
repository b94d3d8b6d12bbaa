package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// A device whose store and identity are lost comes back from its backup: the same node and the same
// containers, its reports made again, and no status of before the backup over a newer one. A backup
// that is damaged changes nothing.
func TestOperate_14_BackupAndRestore(t *testing.T) {
	s := newSystem(t)
	s.plugin()
	ns := s.Namespace()
	s.Apply(ns, samplePod("kept", "edge1"))
	s.WaitPods(ns, "app=kept", "edge1", 1)
	s.staticRoute("kept", "{subnet: 192.0.2.64/26, type: Blackhole}")
	s.waitStaticRoute("kept", "2/2 True Applied edge1,edge2")
	containers := s.Containers("edge1")
	host, err := s.Trial.Host("edge1")
	s.Check(err)
	const dir = "/var/lib/skerry"
	on := func(path string) string { return filepath.Join(host.Root(), path) } // as this test sees the device's files
	file := filepath.Join(dir, "edge1.backup")
	run := func(good bool, want string, args ...string) {
		t.Helper()
		out, errs, code := s.onDevice(t.Context(), "edge1", os.Environ(), nil, args...)
		if (code == 0) != good || !strings.Contains(out+errs, want) {
			t.Fatalf("edgecore %s: %d: %s%s, want %q", strings.Join(args, " "), code, out, errs, want)
		}
	}
	t.Cleanup(func() { _, _ = os.Remove(on(file)), os.Remove(on(file+".half")) })
	run(false, "stop it first", "backup", file)
	run(false, "stop it first", "restore", file, "--yes")

	// Its outbox has a status that waits when the backup is made, and that a newer one replaces.
	release := s.holdWrites("edge1")
	s.Apply(ns, `
apiVersion: v1
kind: Pod
metadata: {name: short, labels: {app: short}}
spec:
  nodeName: edge1
  containers: [{name: c, image: "nowhere.invalid/none:1", imagePullPolicy: Never}]
`)
	s.WaitFor("a status to wait on the device", func(ctx context.Context) error {
		all, _, err := s.fleetStatus(ctx, "-l", "kubernetes.io/hostname=edge1")
		if err == nil && all["edge1"].Backlog == 0 {
			err = errors.New("nothing waits")
		}
		return err
	})
	s.Kill("edge1", "edgecore")
	run(true, "saved node edge1", "backup", file)
	if n := s.waiting("edge1"); n == 0 {
		t.Error("the store that was saved has nothing that waits")
	}
	if info, err := os.Stat(on(file)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the backup: %v %v", info, err)
	}
	release()
	s.Start("edge1", "edgecore")
	s.WaitReady("edge1", true)

	s.Kill("edge1", "edgecore")
	raw, err := os.ReadFile(on(file))
	s.Check(err)
	s.Check(os.WriteFile(on(file+".half"), raw[:len(raw)/2], 0o600))
	run(false, "not whole", "restore", file+".half", "--yes")
	for _, lost := range []string{"store.db", "store.key", "identity"} {
		s.Check(os.RemoveAll(on(filepath.Join(dir, lost))))
	}
	run(false, "Say --yes", "restore", file)
	run(true, "restored node edge1 as of ", "restore", file, "--yes")
	if n := s.waiting("edge1"); n != 0 {
		t.Errorf("%d writes of before the backup wait in the restored store", n)
	}
	if left, err := filepath.Glob(on(filepath.Join(dir, "restore.tmp*"))); err != nil || len(left) > 0 {
		t.Errorf("it leaves %v %v", left, err)
	}
	began := time.Now()
	s.Start("edge1", "edgecore")
	s.WaitFor("the device to be linked and Ready again", func(ctx context.Context) error {
		all, _, err := s.fleetStatus(ctx, "-l", "kubernetes.io/hostname=edge1")
		if err != nil {
			return err
		}
		if d := all["edge1"]; d.Link != "Up" || d.Ready != "True" || d.Since == nil || d.Since.Before(began.Add(-2*time.Second)) {
			return fmt.Errorf("%+v", d)
		}
		return nil
	})
	s.WaitPods(ns, "app=kept", "edge1", 1)
	now := s.Containers("edge1")
	for _, c := range containers {
		if !slices.Contains(now, c) {
			t.Errorf("container %s is gone; there are %v", c, now)
		}
	}
	s.waitStaticRoute("kept", "2/2 True Applied edge1,edge2")
	s.WaitFor("nothing to wait on the device", func(ctx context.Context) error {
		all, _, err := s.fleetStatus(ctx, "-l", "kubernetes.io/hostname=edge1")
		if err == nil && all["edge1"].Backlog > 0 {
			err = fmt.Errorf("%d writes wait", all["edge1"].Backlog)
		}
		return err
	})
}

// The disk of edge1 is copied to edge2, which is other hardware: the cloud refuses the copy with a
// reason that names both machines, while edge1 has its link and while it has none. Its link stays,
// and it has its identity afterwards.
func TestOperate_14_CopyOfADeviceIsRefused(t *testing.T) {
	s := newSystem(t)
	const id, kubelet, dir = "modules.edgeHub.machineID=", "modules.edged.enable=", "/var/lib/skerry"
	// As if the firmware had this name from the beginning.
	name := func(ctx context.Context, machine string) error {
		_ = s.Trial.Stop(ctx, "edge1", "edgecore")
		_, err := s.Run(ctx, "kubectl", "annotate", "lease", "-n", "kube-node-lease", "edge1", "skerry.io/machine-")
		return errors.Join(err, s.Trial.Set(ctx, "edge1", []string{id + machine}))
	}
	s.Check(name(t.Context(), "hardware-1"))
	t.Cleanup(func() { s.Check(name(context.WithoutCancel(t.Context()), `""`)) })
	s.waitLinked("edge1")
	s.Check(s.Trial.Stop(t.Context(), "edge1", "edgecore"))
	s.copyDisk("edge1", "edge2", dir)
	s.Start("edge1", "edgecore")
	s.waitLinked("edge1")
	since := func() (at time.Time) {
		t.Helper()
		s.WaitFor("the cloud to have edge1 up", func(ctx context.Context) error {
			all, _, err := s.fleetStatus(ctx, "-l", "kubernetes.io/hostname=edge1")
			if err != nil {
				return err
			}
			if d := all["edge1"]; d.Link != "Up" || d.Since == nil { // before its kubelet's first report: NoKubelet
				return fmt.Errorf("%+v", d)
			}
			at = *all["edge1"].Since
			return nil
		})
		return at
	}
	began := since()
	recorded := func() string {
		t.Helper()
		machine, _, _ := strings.Cut(s.Kubectl("get", "lease", "-n", "kube-node-lease", "edge1", "-o", `jsonpath={.metadata.annotations.skerry\.io/machine}`), " ")
		return machine
	}
	original := recorded()
	reason := regexp.MustCompile("clone: machine " + original + " has this identity, and this is machine ([0-9a-f]{16}): see docs/maintenance.md#a-clone")
	refused := func(when string) {
		t.Helper()
		s.WaitFor("the copy to be refused, "+when, func(ctx context.Context) error {
			d, err := s.deviceStatus(ctx, "edge2")
			if err == nil && (d.Link.Linked || !reason.MatchString(d.Link.LastError) || reason.FindStringSubmatch(d.Link.LastError)[1] == original) {
				err = fmt.Errorf("linked %t, %s", d.Link.Linked, d.Link.LastError)
			}
			return err
		})
	}
	// Its kubelet would end edge2's pods; the link is the same without.
	s.Check(s.Trial.Set(t.Context(), "edge2", []string{id + "hardware-2", kubelet + "false"}))
	t.Cleanup(func() {
		s.Check(s.Trial.Set(context.WithoutCancel(t.Context()), "edge2", []string{id + `""`, kubelet + "true"}))
	})
	refused("with a link of the device")
	if out, _, _ := s.onDevice(t.Context(), "edge2", os.Environ(), nil, "status"); !reason.MatchString(out) {
		t.Errorf("edgecore status of the copy:\n%s", out)
	}
	if now := since(); !now.Equal(began) {
		t.Errorf("the device's link began at %v, and again at %v", began, now)
	}

	s.Check(s.Trial.Stop(t.Context(), "edge1", "edgecore")) // its session ends at once
	s.Check(s.Trial.Stop(t.Context(), "edge2", "edgecore"))
	s.Start("edge2", "edgecore")
	refused("without a link of the device")
	s.Start("edge1", "edgecore")
	s.waitLinked("edge1")
	if now := recorded(); now != original || original == "" {
		t.Errorf("the cloud has recorded machine %q, and then %q", original, now)
	}
}

// copyDisk gives a device, until the test ends, a copy of a directory of another one, whose
// edgecore is stopped. It leaves the edgecore of both stopped.
func (s *system) copyDisk(from, to, dir string) {
	s.T.Helper()
	own, aside := s.path(to, dir), s.path(to, dir+".own")
	s.Check(s.Trial.Stop(s.T.Context(), to, "edgecore"))
	s.Check(os.Rename(own, aside))
	s.T.Cleanup(func() {
		_ = s.Trial.Stop(context.WithoutCancel(s.T.Context()), to, "edgecore")
		s.Check(os.RemoveAll(own))
		s.Check(os.Rename(aside, own))
	})
	if out, err := exec.CommandContext(s.T.Context(), "cp", "--archive", s.path(from, dir), own).CombinedOutput(); err != nil {
		s.T.Fatalf("copying %s: %v: %s", dir, err, out)
	}
}

// waiting is how many writes wait in the store of a device whose edgecore is stopped.
func (s *system) waiting(node string) (n int) {
	s.T.Helper()
	out, errs, _ := s.onDevice(s.T.Context(), node, os.Environ(), nil, "status", "-o", "json")
	var own struct {
		Running bool
		Data    *struct {
			Outbox struct{ Waiting map[string]int }
		}
	}
	if err := json.Unmarshal([]byte(out), &own); err != nil || own.Running || own.Data == nil {
		s.T.Fatalf("edgecore status: %v: %s%s", err, out, errs)
	}
	for _, count := range own.Data.Outbox.Waiting {
		n += count
	}
	return n
}
