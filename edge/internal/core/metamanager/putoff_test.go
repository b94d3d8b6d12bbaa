package metamanager_test

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
)

// The cloud takes five events and then one each three seconds: the others wait in the outbox, no
// event is lost or reported as refused, pods' statuses are still sent, and the status names the
// quota.
func TestQuotaOfTheCloud(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{ReportEvents: true, Limits: metamanager.Limits{EventWindow: 4}})
		podRef := ref("pods", "default", "web")
		c.set(podRef, pod())
		c.link()
		e.holdPods()
		left, last := 5, time.Now()
		c.mu.Lock()
		c.refuse = func(w *topicpb.Write) *metav1.Status {
			if w.GetResource().GetResource() != "events" {
				return nil
			}
			if left == 0 && time.Since(last) >= 3*time.Second {
				left, last = 1, time.Now()
			}
			if left > 0 {
				left--
				return nil
			}
			return &metav1.Status{
				Code: 429, Reason: metav1.StatusReasonTooManyRequests,
				Details: &metav1.StatusDetails{Kind: topic.QuotaKind, Name: "relay.quotas.eventsPerSecond", RetryAfterSeconds: 3},
			}
		}
		c.mu.Unlock()
		const events = 20
		for i := range events {
			if err := e.event(fmt.Sprintf("event-%d", i), 1); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		if err := e.patchStatus("web", "now"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		c.mu.Lock()
		statuses := len(c.effects[podRef.String()])
		c.mu.Unlock()
		if statuses != 1 {
			t.Errorf("%d statuses of the pod arrived beside the events", statuses)
		}
		s := e.Status().Outbox
		if q := s.Quota; q == nil || q.Quota != "relay.quotas.eventsPerSecond" || q.Times == 0 || !q.Until.After(time.Now()) {
			t.Errorf("the status says %+v", q)
		}
		time.Sleep(2 * time.Minute)
		s = e.Status().Outbox
		if s.Refused != 0 || s.Dropped != 0 || s.Waiting["event"] != 0 || s.InFlight != 0 {
			t.Errorf("in the end: %+v", s)
		}
		for i := range events {
			if c.state(ref("events", "default", fmt.Sprintf("event-%d", i))) == nil {
				t.Errorf("event %d has not arrived", i)
			}
		}
	})
}
