package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
