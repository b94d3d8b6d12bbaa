package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/tests/cluster/lab"
)

// Point 9, IPv6 on the link: a device that has an IPv6 address of the cloud alone is linked by it,
// over websocket and over QUIC. Pods come and their logs are read; a cut that swallows everything
// is noticed, and healed.
func TestTraps_09_LinkOverIPv6Works(t *testing.T) {
	s := newSystem(t)
	s.Check(s.Trial.LinkIPv6(t.Context(), "edge2"))
	ns := s.Namespace()
	s.set("edge2", fmt.Sprintf("modules.edgeHub.servers=[%q]", lab.Replica6(1)), fmt.Sprintf("modules.edgeHub.servers=[%s]", lab.Cloud()))
	for _, transport := range []string{"websocket", "quic"} {
		s.set("edge2", "modules.edgeHub.transport="+transport, "modules.edgeHub.transport=auto")
		d, err := s.deviceStatus(t.Context(), "edge2")
		s.Check(err)
		if d.Link.Transport != transport {
			t.Errorf("the link is over %s, want %s", d.Link.Transport, transport)
		}
		s.Apply(ns, samplePod("six-"+transport, "edge2"))
		p := s.WaitPods(ns, "app=six-"+transport, "edge2", 1)[0]
		s.WaitFor("the pod's log", func(ctx context.Context) error {
			raw, err := s.Client.CoreV1().Pods(ns).GetLogs(p.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
			if err == nil && len(bytes.TrimSpace(raw)) == 0 {
				err = errors.New("it is empty")
			}
			return err
		})
		s.CutSilently("edge2")
		s.waitUnlinked("edge2")
		s.Heal("edge2")
		s.waitLinked("edge2")
	}
}
