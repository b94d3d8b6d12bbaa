package clusterinfo

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

const namespace = "skerry-system"

// The status by the Lease's holder and its expiry.
func TestDecide(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	held := holding{holder: "edge1", renewed: now.Add(-10 * time.Second), until: now.Add(20 * time.Second)}
	over := holding{holder: "edge1", renewed: now.Add(-time.Minute), until: now.Add(-time.Second)}
	old := metav1.NewTime(now.Add(-30 * time.Second))
	shown := v1alpha1.ClusterInfoStatus{Reporter: "edge1", CollectTime: &old, Nodes: []v1alpha1.ClusterNode{{Name: "old"}}}
	tests := map[string]struct {
		before    v1alpha1.ClusterInfoStatus
		holding   holding
		candidate bool
		reporter  string
		node      string // the one that is shown; "" without one
		reason    string
		next      time.Duration
	}{
		"never a leader":           {before: v1alpha1.ClusterInfoStatus{}, candidate: true, reason: reasonNoLeader},
		"a first leader":           {before: v1alpha1.ClusterInfoStatus{}, holding: held, candidate: true, reporter: "edge1", node: "new", reason: reasonReporting, next: 20 * time.Second},
		"nothing new is due":       {before: shown, holding: held, candidate: true, reporter: "edge1", node: "old", reason: reasonReporting, next: 20 * time.Second},
		"another leader":           {before: shown, holding: holding{holder: "edge2", renewed: now, until: now.Add(time.Hour)}, candidate: true, reporter: "edge2", node: "new", reason: reasonReporting, next: time.Minute},
		"the leader is silent":     {before: shown, holding: over, candidate: true, node: "old", reason: reasonSilent},
		"the Lease is given back":  {before: shown, candidate: true, reason: reasonNoLeader},
		"the holder is not chosen": {before: shown, holding: held, reason: reasonNotChosen},
	}
	for name, tc := range tests {
		info := &v1alpha1.ClusterInfo{Status: tc.before}
		status, next := decide(info, tc.holding, func(string) bool { return tc.candidate }, now, func() v1alpha1.ClusterInfoStatus {
			return v1alpha1.ClusterInfoStatus{Nodes: []v1alpha1.ClusterNode{{Name: "new"}}}
		})
		node := ""
		if len(status.Nodes) > 0 {
			node = status.Nodes[0].Name
		}
		c := status.Conditions[0]
		if status.Reporter != tc.reporter || node != tc.node || c.Reason != tc.reason || next != tc.next || (c.Status == metav1.ConditionTrue) != (tc.reporter != "") {
			t.Errorf("%s: %+v, again in %s", name, status, next)
		}
	}
}

// The writes that a device may make to the Lease: hold it in its own name while it is a candidate
// and no other holds it, and give it back. Times are cloudcore's.
func TestLease(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	client := fake.NewClientset(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.StatsLeaderLease}})
	l := NewLease(client, namespace, func(node string) bool { return node != "edge9" })
	l.now = func() time.Time { return now }
	put := func(node, holder string) int32 {
		t.Helper()
		lease, err := client.CoordinationV1().Leases(namespace).Get(t.Context(), v1alpha1.StatsLeaderLease, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		seconds, wrong := int32(30), metav1.NewMicroTime(now.Add(100*time.Hour))
		lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &holder, &seconds, &wrong
		body, err := json.Marshal(lease)
		if err != nil {
			t.Fatal(err)
		}
		a, ok := l.Serve(t.Context(), types.NodeName(node), &topicpb.APIRequest{Method: http.MethodPut, Path: l.Path(), Body: body})
		if !ok {
			t.Fatal("it is not served")
		}
		return a.Code
	}
	for i, step := range []struct {
		after        time.Duration
		node, holder string
		want         int32
	}{
		{0, "edge9", "edge9", http.StatusForbidden}, // no candidate
		{0, "edge1", "edge2", http.StatusForbidden}, // in another's name
		{0, "edge1", "", http.StatusForbidden},      // it does not hold it
		{0, "edge1", "edge1", http.StatusOK},
		{29 * time.Second, "edge2", "edge2", http.StatusForbidden}, // held
		{0, "edge2", "", http.StatusForbidden},                     // another's
		{0, "edge1", "edge1", http.StatusOK},                       // renewed
		{29 * time.Second, "edge2", "edge2", http.StatusForbidden},
		{2 * time.Second, "edge2", "edge2", http.StatusOK}, // its time was over
		{0, "edge2", "", http.StatusOK},
		{0, "edge1", "edge1", http.StatusOK}, // given back: at once
	} {
		now = now.Add(step.after)
		if got := put(step.node, step.holder); got != step.want {
			t.Errorf("step %d: %s as %q: %d, want %d", i, step.node, step.holder, got, step.want)
		}
	}
	lease, err := l.get(t.Context())
	if err != nil || !lease.Spec.RenewTime.Time.Equal(now) || *lease.Spec.LeaseTransitions != 3 {
		t.Errorf("%+v, %v", lease.Spec, err)
	}
	if _, ok := l.Serve(t.Context(), "edge1", &topicpb.APIRequest{Method: http.MethodGet, Path: l.Path() + "2"}); ok {
		t.Error("another Lease is served")
	}
}
