package apps_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// TestClaims_07_ForcedDeletionStartsNoSecondCopy: the pod of a singleton is deleted by force while
// its device is cut off: the container runs on there, and no second one starts before the device is
// back.
func TestClaims_07_ForcedDeletionStartsNoSecondCopy(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.create(ns, appYAML("single", "edge1", "  singleton: true"))
	before := s.waitOn(ns, "single", "edge1")
	s.Cut("edge1")
	s.WaitReady("edge1", false)
	now := int64(0)
	s.Check(s.Client.CoreV1().Pods(ns).Delete(t.Context(), before.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	app := s.waitApp(ns, "single", "to say that a removed copy may run", func(a *v1alpha1.EdgeApp) bool {
		c := is(a, v1alpha1.AppAwaitingFencing)
		return c != nil && c.Reason == "PodRemoved"
	})
	if c := is(app, v1alpha1.AppAwaitingFencing); !strings.Contains(c.Message, "kubectl taint node edge1") {
		t.Errorf("the condition does not say how to go on: %s", c.Message)
	}
	s.lasts("one copy, on the island, though its pod is gone", 10*time.Second, func() error {
		for _, p := range s.pods(ns, "single") {
			if p.Spec.NodeName != "" {
				return fmt.Errorf("a second copy %s is on %s", p.Name, p.Spec.NodeName)
			}
		}
		if got := s.copies(before); !slices.Equal(got, []string{"edge1"}) {
			return fmt.Errorf("the container runs on %v", got)
		}
		return nil
	})
	s.Heal("edge1")
	app = s.waitApp(ns, "single", "to run", func(a *v1alpha1.EdgeApp) bool { return a.Status.Phase == v1alpha1.PhaseRunning })
	pods := s.pods(ns, "single")
	if got := s.copies(append(pods, before)...); !slices.Equal(got, []string{app.Status.ActiveNode}) {
		t.Errorf("copies run on %v, the active node is %s", got, app.Status.ActiveNode)
	}
}

// TestClaims_34_SingletonWaitsForTheCloudAfterABoot: a singleton has moved away from a device that
// was switched off. The device boots without a link, and does not start the copy of its store.
func TestClaims_34_SingletonWaitsForTheCloudAfterABoot(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.create(ns, appYAML("single", "edge1", "  singleton: true"))
	s.create(ns, appYAML("other", "edge1", "  affinity: Required"))
	before := s.waitOn(ns, "single", "edge1")
	s.waitOn(ns, "other", "edge1")
	s.Check(s.Trial.PowerOff(t.Context(), "edge1"))
	s.WaitReady("edge1", false)
	s.outOfService("edge1")
	app := s.waitApp(ns, "single", "to run elsewhere", func(a *v1alpha1.EdgeApp) bool {
		return a.Status.Phase == v1alpha1.PhaseRunning && a.Status.ActiveNode != "edge1"
	})
	s.Reboot("edge1", true)
	started := func() (ids []string) {
		var out, errs strings.Builder
		code, err := s.Trial.Exec(t.Context(), "edge1", trial.Streams{Out: &out, Err: &errs}, nil,
			"ctr", "--namespace=k8s.io", "containers", "list", "--quiet", `labels."io.kubernetes.pod.uid"==`+string(before.UID))
		s.Check(err)
		if code != 0 {
			t.Fatalf("listing containers: %s", errs.String())
		}
		all := strings.Fields(out.String())
		for _, id := range s.Containers("edge1") {
			if slices.Contains(all, id) {
				ids = append(ids, id)
			}
		}
		return ids
	}
	s.WaitFor("an application that may not move to run on the island", func(ctx context.Context) error {
		out, err := s.TryEdgeKubectl(ctx, "edge1", "get", "pods", "-n", ns, "-l", v1alpha1.EdgeAppLabel+"=other", "-o", "jsonpath={.items[0].status.containerStatuses[0].ready}")
		if err != nil || strings.TrimSpace(out) != "true" {
			return fmt.Errorf("ready is %q: %v", out, err)
		}
		return nil
	})
	s.WaitFor("edgecore to name the pod that it holds", func(ctx context.Context) error {
		var all struct {
			Data *struct {
				Withheld []struct{ Name, Reason string } `json:"withheld"`
			} `json:"data"`
		}
		if err := s.EdgeStatus(ctx, "edge1", &all); err != nil {
			return err
		}
		if all.Data == nil || len(all.Data.Withheld) != 1 || all.Data.Withheld[0].Name != before.Name {
			return fmt.Errorf("withheld: %+v", all.Data)
		}
		return nil
	})
	s.lasts("no copy on the device that booted without a link", 10*time.Second, func() error {
		if got := started(); len(got) > 0 {
			return fmt.Errorf("containers %v on edge1, one copy runs on %s", got, app.Status.ActiveNode)
		}
		return nil
	})
	s.Heal("edge1")
	s.inService("edge1")
	s.WaitReady("edge1", true)
	s.waitOne(ns, "single")
}
