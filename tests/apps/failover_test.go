package apps_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// An impossible application is refused with a reason when it is written; one that may work later
// has the reason in its status.
func TestRefusals(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.create(ns, appYAML("accepted", "edge1"))
	tests := map[string]struct{ app, want string }{
		"two designated nodes": {
			appYAML("a", "edge1", "  volumes: [{name: data, size: 1Gi, designatedNode: edge2}]"), "one designated node",
		},
		"replicated without a class": {
			appYAML("a", "edge1", "  volumes: [{name: data, size: 1Gi, replicated: true}]"), "storageClassName",
		},
		"hostPath": {
			appYAML("a", "edge1") + "      volumes: [{name: host, hostPath: {path: /etc}}]\n", "hostPath",
		},
		"no fencing with volumes": {
			strings.Replace(appYAML("a", "edge1", "  volumes: [{name: data, size: 1Gi}]"), "after: 2s", "fencing: None", 1), "two devices would write",
		},
		"no fencing of a singleton": {
			strings.Replace(appYAML("a", "edge1", "  singleton: true"), "after: 2s", "fencing: None", 1), "two copies",
		},
		"a node in the template": {
			strings.Replace(appYAML("a", "edge1"), "dnsPolicy: Default", "nodeName: edge2", 1), "designatedNode",
		},
		"no containers": {
			appYAML("a", "edge1")[:strings.Index(appYAML("a", "edge1"), "      containers:")], "no containers",
		},
		"an unknown affinity": {
			appYAML("a", "edge1", "  affinity: Sometimes"), "Preferred",
		},
		"a long name": {
			appYAML(strings.Repeat("a", 60), "edge1"), "52",
		},
	}
	for name, tc := range tests {
		s.WaitFor(name+" to be refused", func(ctx context.Context) error {
			_, err := s.apps(ns).Create(ctx, s.object(tc.app), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				return fmt.Errorf("want %q, got %v", tc.want, err)
			}
			return nil
		})
	}
	s.create(ns, appYAML("nowhere", "edge9"))
	s.waitApp(ns, "nowhere", "to be refused", func(a *v1alpha1.EdgeApp) bool {
		return a.Status.Phase == v1alpha1.PhaseRefused && strings.Contains(a.Status.Conditions[0].Message, "no node edge9")
	})
	// A template that can't be decoded is this application's trouble alone: devices continue to
	// report others.
	s.create(ns, appYAML("unreadable", "edge1")+"      restartPolicy: {no: policy}\n")
	s.waitApp(ns, "unreadable", "to be refused", func(a *v1alpha1.EdgeApp) bool {
		c := condition(a, v1alpha1.AppAccepted)
		return a.Status.Phase == v1alpha1.PhaseRefused && c != nil && c.Reason == "TemplateInvalid" && strings.Contains(c.Message, "restartPolicy")
	})
	s.create(ns, appYAML("reported", "edge1"))
	s.reporter(ns, "reported", "edge1")
	// Where no administrator has enabled it, and where the template makes no pod, the status has
	// the reason.
	closed := s.System.Namespace()
	s.create(closed, appYAML("uninvited", "edge1"))
	s.waitApp(closed, "uninvited", "to be refused", func(a *v1alpha1.EdgeApp) bool {
		c := condition(a, v1alpha1.AppAccepted)
		return a.Status.Phase == v1alpha1.PhaseRefused && c != nil && strings.Contains(c.Message, "skerry.io/edge-apps=enabled")
	})
	s.Kubectl("label", "namespace", closed, v1alpha1.EdgeAppNamespaceLabel+"=enabled")
	s.waitOn(closed, "uninvited", "edge1")
	s.create(ns, strings.Replace(appYAML("nameless", "edge1"), "name: sample,", "name: Not_a_name,", 1))
	s.waitApp(ns, "nameless", "to be refused", func(a *v1alpha1.EdgeApp) bool {
		c := condition(a, v1alpha1.AppAccepted)
		return a.Status.Phase == v1alpha1.PhaseRefused && c != nil && strings.Contains(c.Message, "Not_a_name")
	})
	if got := s.Kubectl("get", "edgeapps", "-n", ns); !strings.Contains(got, "DESIGNATED") || !strings.Contains(got, "Refused") {
		t.Errorf("kubectl shows\n%s", got)
	}
}

// TestCluster_15: the active node is cut off, not dead. No second copy runs before the first one is
// confirmed to be gone, even where a user deletes the pod; the island's containers keep running.
// Linked again, the deletion takes its course, and one copy runs.
func TestCluster_15_CutIsNoDeath(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.create(ns, appYAML("single", "edge1", "  singleton: true"))
	before := s.waitOn(ns, "single", "edge1")
	s.Cut("edge1")
	s.WaitReady("edge1", false)
	app := s.waitApp(ns, "single", "to await fencing", func(a *v1alpha1.EdgeApp) bool { return a.Status.Phase == v1alpha1.PhaseAwaitingFencing })
	if c := is(app, v1alpha1.AppAwaitingFencing); c == nil || !strings.Contains(c.Message, "kubectl taint node edge1") {
		t.Errorf("the condition does not say what is missing: %+v", app.Status.Conditions)
	}
	alone := func() error {
		for _, p := range s.pods(ns, "single") {
			if p.UID != before.UID && p.Spec.NodeName != "" {
				return fmt.Errorf("a second copy %s is on %s", p.Name, p.Spec.NodeName)
			}
		}
		if got := s.copies(before); !slices.Equal(got, []string{"edge1"}) {
			return fmt.Errorf("the container runs on %v", got)
		}
		return nil
	}
	s.lasts("one copy, on the island", 6*time.Second, alone)
	// The ReplicaSet replaces a pod that is being deleted; the new one must wait.
	s.Check(s.Client.CoreV1().Pods(ns).Delete(t.Context(), before.Name, metav1.DeleteOptions{}))
	s.WaitFor("a pod that waits", func(context.Context) error {
		for _, p := range s.pods(ns, "single") {
			if p.UID != before.UID && len(p.Spec.SchedulingGates) > 0 {
				return nil
			}
		}
		return errNot
	})
	s.lasts("one copy, on the island, though its pod is deleted", 6*time.Second, alone)
	s.Heal("edge1")
	s.WaitFor("the deleted pod to end", func(ctx context.Context) error {
		_, err := s.Client.CoreV1().Pods(ns).Get(ctx, before.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errNot
	})
	// Where it runs now is for the scheduler: its node may not be Ready again when the old
	// copy has ended.
	s.waitOne(ns, "single")
	app = s.waitApp(ns, "single", "to run", func(a *v1alpha1.EdgeApp) bool { return a.Status.Phase == v1alpha1.PhaseRunning })
	pods := s.pods(ns, "single")
	if got := s.copies(append(pods, before)...); !slices.Equal(got, []string{app.Status.ActiveNode}) {
		t.Errorf("copies run on %v, the active node is %s", got, app.Status.ActiveNode)
	}
}
