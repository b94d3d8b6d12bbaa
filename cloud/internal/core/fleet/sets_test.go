package fleet_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/cloud/internal/core/fleet"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// A set is one line, without control characters of its author.
func TestSetsTable(t *testing.T) {
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	meta := metav1.ObjectMeta{Name: "a", CreationTimestamp: metav1.NewTime(now.Add(-26 * time.Hour)), Annotations: map[string]string{v1alpha1.RequestedByAnnotation: "al\x1bice"}}
	table := fleet.SetsTable([]v1alpha1.NodeOperationSet{
		{ObjectMeta: metav1.ObjectMeta{Name: "new", CreationTimestamp: metav1.NewTime(now)}, Spec: v1alpha1.NodeOperationSetSpec{Template: v1alpha1.NodeOperationTemplate{Operation: v1alpha1.OperationReboot}}},
		{
			ObjectMeta: meta, Spec: v1alpha1.NodeOperationSetSpec{Template: v1alpha1.NodeOperationTemplate{Operation: v1alpha1.OperationUpgrade}},
			Status: v1alpha1.NodeOperationSetStatus{
				Wave: "2/3", Progress: "33/1000", Running: 17, Offline: 41, Failed: 1, Refused: 2,
				Conditions: []metav1.Condition{{Type: v1alpha1.SetReady, Reason: "FailureThreshold", Message: "one\nhas failed"}},
			},
		},
	}, now)
	var got []string
	for _, r := range table.Rows {
		got = append(got, fmt.Sprint(r.Cells...))
	}
	want := []string{
		fmt.Sprint("new", "Reboot", "-", "-", "0", "0", "0", "0", "New", "-", "0s", ""),
		fmt.Sprint("a", "Upgrade", "2/3", "33/1000", "17", "41", "1", "2", "FailureThreshold", "alice", "26h", "one has failed"),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}
