package join

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/skerry-io/skerry/common/pki"
)

// A Lease that was renewed in the future, by a cloudcore whose clock was ahead, is no sign of life:
// its name would be taken for as long as the clock was wrong.
func TestClaims_40_LeaseOfTheFutureIsNoSignOfLife(t *testing.T) {
	now := time.Now()
	for name, tc := range map[string]struct {
		renewed time.Duration
		live    bool
	}{
		"a moment ago":              {-5 * time.Second, true},
		"by a clock a little ahead": {30 * time.Second, true},
		"long ago":                  {-time.Minute, false},
		"a day ahead":               {24 * time.Hour, false},
		"a year ahead":              {365 * 24 * time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			at, seconds := metav1.NewMicroTime(now.Add(tc.renewed)), int32(40)
			client := fake.NewClientset(&coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "edge1"}, Spec: coordinationv1.LeaseSpec{RenewTime: &at, LeaseDurationSeconds: &seconds},
			})
			err := live(t.Context(), client, "edge1", now)
			refusal, refused := errors.AsType[*pki.Refusal](err)
			if refused != tc.live || refused && (refusal.Reason != pki.ReasonNodeLive || !strings.Contains(refusal.Message, "stop edgecore on it and try again after")) {
				t.Errorf("%v, live: %v", err, tc.live)
			}
		})
	}
}

// Neither is one whose duration the device itself has set to decades: its name is free minutes
// after the last renewal.
func TestClaims_40_LeaseOfDecadesEnds(t *testing.T) {
	now := time.Now()
	for ago, alive := range map[time.Duration]bool{time.Minute: true, 11 * time.Minute: false} {
		at, seconds := metav1.NewMicroTime(now.Add(-ago)), int32(math.MaxInt32)
		client := fake.NewClientset(&coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "edge1"}, Spec: coordinationv1.LeaseSpec{RenewTime: &at, LeaseDurationSeconds: &seconds},
		})
		if err := live(t.Context(), client, "edge1", now); (err != nil) != alive {
			t.Errorf("%v after its renewal: %v", ago, err)
		}
	}
}
