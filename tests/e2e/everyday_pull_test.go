package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/tests/cluster/registry"
)

// TestEveryday_14: the power goes in the middle of a pull, again and again. The image is whole in
// the end, and its pod runs; the other pods come back each time.
func TestEveryday_14_PowerCutInAPull(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	other := s.pod(ns, "bare", "edge1")
	r := s.newRegistry("./tests/images/devices")
	r.Slow(func() time.Duration { return 10 * time.Minute })
	s.serve("edge1", r)
	s.Apply(ns, `
apiVersion: v1
kind: Pod
metadata: {name: pulls, labels: {app: pulls}}
spec:
  nodeName: edge1
  tolerations: [{operator: Exists}]
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: "`+registry.Address+`/slow/devices:1", args: [wait]}]
`)
	for range reboots(10) {
		begun, _, _ := r.Counts()
		s.WaitFor("a pull to be under way", func(context.Context) error {
			if now, _, _ := r.Counts(); now < begun+2 { // its configuration and a layer
				return errors.New("none is")
			}
			return nil
		})
		s.Reboot("edge1", false)
		s.serve("edge1", r)
		s.waitRunsAgain("edge1", *other)
	}
	if _, pulled, _ := r.Counts(); pulled > 1+reboots(10) { // manifests
		t.Errorf("%d blobs were sent whole before the last cut", pulled)
	}
	r.Slow(nil)
	s.Kill("edge1", "containerd") // a pull under way takes its time
	s.Start("edge1", "containerd")
	s.WaitPods(ns, "app=pulls", "edge1", 1)
	s.waitDevice("edge1", ns, "pulls", func(p *corev1.Pod) error {
		if !running(p) {
			return fmt.Errorf("%+v", p.Status.ContainerStatuses)
		}
		return nil
	})
}
