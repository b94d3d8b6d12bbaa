package e2e_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/lab"
)

// lease gives a device another address or default route, or removes them, now and at each boot,
// until the test ends.
func (s *system) lease(node string, lease lab.Lease) {
	s.T.Helper()
	s.Check(s.Trial.Lease(s.T.Context(), node, lease))
	s.T.Cleanup(func() {
		if err := s.Trial.Lease(context.WithoutCancel(s.T.Context()), node, lab.Lease{}); err != nil {
			s.T.Error(err)
		}
	})
}

// now is a pod as its device shows it: another address than before, after a boot.
func (s *system) now(pod corev1.Pod) *corev1.Pod {
	s.T.Helper()
	p, err := s.device(pod.Spec.NodeName).CoreV1().Pods(pod.Namespace).Get(s.T.Context(), pod.Name, metav1.GetOptions{})
	s.Check(err)
	return p
}

// TestEveryday_13: a device that has no default route when its edgecore starts, or boots with no
// network but its LAN, starts its pods, which keep running; when the network comes it finds its
// cloud by itself.
func TestEveryday_13_NetworkComesLate(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	pod := s.pod(ns, "bare", "edge1")
	resolver := func(ctx context.Context, file string) error {
		return s.Trial.Set(ctx, "edge1", []string{"modules.edged.kubelet.resolvConf=" + file})
	}
	t.Cleanup(func() {
		if err := resolver(context.WithoutCancel(t.Context()), `""`); err != nil {
			t.Error(err)
		}
	})
	s.Check(resolver(t.Context(), "/run/dhcp/resolv.conf")) // where no server answers, it is not there
	s.waitLinked("edge1")
	for name, c := range map[string]struct {
		lease lab.Lease
		boots bool
	}{
		"no default route": {lab.Lease{NoRoute: true}, false}, "LAN only": {lab.Lease{None: true}, true},
	} {
		running := s.Containers("edge1")
		s.lease("edge1", c.lease)
		if c.boots {
			s.Reboot("edge1", false)
			s.waitRunsAgain("edge1", *pod)
			running = s.Containers("edge1")
		} else {
			s.Kill("edge1", "edgecore")
			s.Start("edge1", "edgecore")
			s.waitKubelet("edge1")
			if diff := cmp.Diff(running, s.Containers("edge1"), sorted()); diff != "" {
				t.Errorf("%s: the containers (-before +after):\n%s", name, diff)
			}
		}
		s.WaitFor("a crashed container to run again, "+name, func(context.Context) error {
			if s.same("edge1", running) == nil { // its program may only be about to listen
				s.post(s.now(*pod), "/crash")
			}
			return s.replaced("edge1", running)
		})
		s.waitRunningHere("edge1", *pod)
		running = s.Containers("edge1")
		s.waitUnlinked("edge1")
		s.Check(s.Trial.Lease(t.Context(), "edge1", lab.Lease{}))
		s.waitLinked("edge1")
		s.WaitReady("edge1", true)
		if diff := cmp.Diff(running, s.Containers("edge1"), sorted()); diff != "" {
			t.Errorf("with the network: the containers (-before +after):\n%s", diff)
		}
	}
}
