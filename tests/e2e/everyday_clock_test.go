package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/suite"
	"github.com/skerry-io/skerry/tests/cluster/wrongclock"
)

// deviceClock is the clock of a device: of its edgecore and of its containerd.
type deviceClock struct {
	s    *system
	file string
}

// deviceClock gives a device, from its next boot on, a clock of its own.
func (s *system) deviceClock(node string) deviceClock {
	s.T.Helper()
	dir := s.T.TempDir()
	c := deviceClock{s, filepath.Join(dir, "ahead")}
	launcher := filepath.Join(dir, "wrongclock")
	s.Check(binary.BuildStatic(s.T.Context(), s.Root, launcher, "./tests/cmd/wrongclock"))
	containerd, err := exec.LookPath("containerd")
	s.Check(err)
	for name, program := range map[string]string{"edgecore": filepath.Join(s.Root, "bin", "edgecore"), "containerd": containerd} {
		asking := filepath.Join(dir, name)
		s.Check(wrongclock.Copy(asking, program))
		s.Check(s.Trial.Replace(s.T.Context(), node, name, []string{launcher, "@" + c.file, asking}))
	}
	s.T.Cleanup(func() { // its user goes before its files do
		ctx := context.Background()
		var err error
		for _, name := range []string{"edgecore", "containerd"} {
			err = errors.Join(err, s.Trial.Replace(ctx, node, name, nil))
		}
		if err = errors.Join(err, s.Trial.PowerOff(ctx, node)); err != nil {
			s.T.Error(err)
		}
	})
	return c
}

// set sets the clock.
func (c deviceClock) set(at time.Time) {
	c.s.T.Helper()
	next := c.file + ".next"
	c.s.Check(os.WriteFile(next, fmt.Append(nil, int64(time.Until(at)/time.Second)), 0o600))
	c.s.Check(os.Rename(next, c.file))
}

// TestEveryday_12: a device without a battery boots in 1970, its containerd too, with no link. Its
// pod is Ready then, also after its container has ended; and it stays so when the clock is put
// right, when it is set back by a month, and when a container ends after that; also with a
// readiness probe, of which the kubelet knows no result.
func TestEveryday_12_ContainersOfAnEarlierClock(t *testing.T) {
	const node = "edge1"
	s := newSystem(t)
	ns := s.Namespace()
	s.Apply(ns, islander("dusk", node)+"    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}\n")
	pod := &s.WaitPods(ns, "app=dusk", node, 1)[0]
	clock := s.deviceClock(node)
	// Where its container is to end first, it is asked for that until it has.
	ready := func(when string, least int32) {
		t.Helper()
		s.waitDevice(node, ns, "dusk", func(p *corev1.Pod) error {
			if suite.PodReady(*p) && restarts(*p) == least-1 && least > 1 {
				s.post(p, "/crash")
			}
			if p.UID != pod.UID || !suite.PodReady(*p) || restarts(*p) < least {
				return fmt.Errorf("%s: uid %s, phase %s, restarts %d: %+v", when, p.UID, p.Status.Phase, restarts(*p), p.Status.ContainerStatuses)
			}
			return nil
		})
	}
	s.Cut(node)
	clock.set(time.Unix(0, 0))
	s.Reboot(node, true)
	ready("in 1970", 1)
	ready("in 1970, its container has ended", 2)
	clock.set(time.Now())
	s.Kill(node, "edgecore")
	s.Start(node, "edgecore")
	ready("the clock is right", 2)
	clock.set(time.Now().AddDate(0, -1, 0))
	ready("a month back, its container has ended", 3)
	clock.set(time.Now().AddDate(0, -2, 0))
	s.Kill(node, "edgecore") // it forgets that probes have succeeded
	s.Start(node, "edgecore")
	s.waitDevice(node, ns, "dusk", func(p *corev1.Pod) error {
		if p.UID != pod.UID || !suite.PodReady(*p) || restarts(*p) < 4 { // until then it is Ready by the last kubelet's report
			return fmt.Errorf("two months back, with another kubelet: uid %s, restarts %d: %+v", p.UID, restarts(*p), p.Status.ContainerStatuses)
		}
		return nil
	})
	clock.set(time.Now())
	s.Heal(node)
	s.WaitReady(node, true)
	if p := s.WaitPods(ns, "app=dusk", node, 1)[0]; p.UID != pod.UID {
		t.Errorf("the pod was replaced: %s, was %s", p.UID, pod.UID)
	}
}
