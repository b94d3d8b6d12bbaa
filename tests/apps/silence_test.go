package apps_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// deviceStatus has the fields of `edgecore status -o json` that a script reads.
type deviceStatus struct {
	Apps struct {
		Silent bool
		Apps   []struct {
			App      string
			State    v1alpha1.AppState
			Restarts int32
		}
	}
	ClusterStats struct {
		Candidate, Leading bool
		Leader             string
		Renewed            time.Time
	}
}

func (s *system) deviceStatus(ctx context.Context, node string) (d deviceStatus, err error) {
	err = s.EdgeStatus(ctx, node, &d)
	return d, err
}

// TestCluster_08: the API is away for longer than a device reports without it (2 min; 15 s in this
// trial). The pod keeps running; the device's status shows that it sends no reports; it restarts
// failed containers, and makes no other decision: it runs the same pods. In the cloud the last
// report stays as it was, and its age is shown. Afterwards the present state is reported. The 2 min
// themselves are in a unit test, by the clock of the test.
func TestCluster_08_PodGoesOnWhileTheAPIIsAway(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.create(ns, appYAML("island", "edge1", "  affinity: Required"))
	pod := s.waitOn(ns, "island", "edge1")
	s.reporter(ns, "island", "edge1")
	s.Cut("edge1")
	s.WaitReady("edge1", false)
	silent := func(want bool) {
		s.WaitFor(fmt.Sprintf("the device to be silent: %v", want), func(ctx context.Context) error {
			d, err := s.deviceStatus(ctx, "edge1")
			if err == nil && d.Apps.Silent != want {
				err = errNot
			}
			return err
		})
	}
	silent(true)
	if got := s.copies(pod); !slices.Equal(got, []string{"edge1"}) {
		t.Errorf("the container runs on %v", got)
	}
	before, err := s.read(t.Context(), ns, "island")
	s.Check(err)
	if c := condition(before, v1alpha1.AppCurrent); c == nil || c.Status != "False" || !strings.Contains(c.Message, "NotReady since") {
		t.Errorf("the age of what is known is not shown: %+v", before.Status.Conditions)
	}
	s.crash(pod)
	s.WaitFor("the device to heal its pod", func(ctx context.Context) error {
		d, err := s.deviceStatus(ctx, "edge1")
		for _, a := range d.Apps.Apps { // one of an earlier test may be there still: the cut came before word of its end
			if a.App == ns+"/island" && a.Restarts == 1 && a.State == v1alpha1.AppRunning {
				return nil
			}
		}
		return cmp.Or(err, fmt.Errorf("it says %+v", d.Apps))
	})
	s.Heal("edge1")
	silent(false)
	after := s.waitApp(ns, "island", "to be reported as it is", func(a *v1alpha1.EdgeApp) bool {
		return len(a.Status.Nodes) == 1 && a.Status.Nodes[0].Restarts == 1 && a.Status.Nodes[0].Running
	})
	if b, a := before.Status.Nodes[0].CollectTime, after.Status.Nodes[0].CollectTime; !b.Before(a) {
		t.Errorf("collected at %v before and at %v after", b, a)
	}
	if pods := s.pods(ns, "island"); len(pods) != 1 || pods[0].UID != pod.UID {
		t.Errorf("%d pods, or another one", len(pods))
	}
}

// crash ends the program in a pod, by asking it.
func (s *system) crash(pod corev1.Pod) {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(s.T.Context(), 30*time.Second)
	defer cancel()
	h, err := s.Trial.Host(pod.Spec.NodeName)
	s.Check(err)
	conn, err := h.Dial(ctx, "tcp", pod.Status.PodIP+":8080")
	s.Check(err)
	defer conn.Close()
	_, err = conn.Write([]byte("POST /crash HTTP/1.0\r\n\r\n"))
	s.Check(err)
}
