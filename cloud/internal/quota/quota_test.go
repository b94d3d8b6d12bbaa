package quota_test

import (
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/skerry-io/skerry/cloud/internal/quota"
)

func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := quota.NewRates(quota.Rate{PerSecond: 2, Burst: 10})
		take := func(n int) (taken int) {
			for range n {
				if ok, _ := r.Take("edge-1"); ok {
					taken++
				}
			}
			return taken
		}
		if got := take(100); got != 10 {
			t.Errorf("at once: %d, want the burst of 10", got)
		}
		if ok, after := r.Take("edge-1"); ok || after != 1 {
			t.Errorf("above the burst: %v, %d s", ok, after)
		}
		if ok, _ := r.Take("edge-2"); !ok {
			t.Error("another node pays for it")
		}
		time.Sleep(3 * time.Second)
		if got := take(100); got != 6 {
			t.Errorf("after 3 s: %d, want 6", got)
		}
	})
	if ok, _ := (*quota.Rates)(nil).Take("edge-1"); !ok {
		t.Error("no rates bound something")
	}
}

func TestBytes(t *testing.T) {
	b := &quota.Bytes{Most: 10}
	for _, step := range []struct {
		take, give int
		want       bool
	}{{8, 0, true}, {3, 0, false}, {2, 0, true}, {0, 10, true}, {50, 0, true}, {1, 0, false}, {0, 50, true}, {10, 0, true}} {
		b.Give(step.give)
		if got := b.Take(step.take); got != step.want {
			t.Errorf("%+v: %v", step, got)
		}
	}
}

func TestRefusal(t *testing.T) {
	err := quota.Refusal("relay.quotas.eventsPerSecond", 3)
	if seconds, ok := apierrors.SuggestsClientDelay(err); !ok || seconds != 3 || !apierrors.IsTooManyRequests(err) {
		t.Errorf("%+v", err.ErrStatus)
	}
}
