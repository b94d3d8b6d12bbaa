package quota_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/quota"
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

// Nodes that use up their bursts share the rate of a few of them. Others have their bursts, and one
// alone that comes back with a backlog has its whole rate. A node that stays just below the
// threshold has no advantage.
func TestRates_HeavyNodesShare(t *testing.T) {
	const perSecond, burst, heavy, floods = 50, 800, 4, 50
	for name, flood := range map[string]struct{ first, each int }{
		"all they can": {burst, 1000}, "never more in a second than one alone may": {0, perSecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := quota.NewRates(quota.Rate{PerSecond: perSecond, Burst: burst, Heavy: heavy})
				node := func(i int) types.NodeName { return types.NodeName(fmt.Sprint("flood-", i)) }
				taken := 0
				take := func(n int) {
					for i := range floods {
						for range n {
							ok, after := r.Take(node(i))
							if !ok {
								if after < 1 || after > 60 {
									t.Fatalf("retry after %d s", after)
								}
								break
							}
							taken++
						}
					}
				}
				take(flood.first)
				for second := range 60 {
					time.Sleep(time.Second)
					take(flood.each)
					if second%20 == 10 { // a device with 40 pods that start
						for n := range 40 {
							if ok, _ := r.Take("honest"); !ok {
								t.Fatalf("in second %d an honest node had its %dth refused", second, n)
							}
						}
					}
				}
				if most := floods*(burst+1) + 60*(heavy*perSecond+floods*perSecond/50); taken > most || taken < floods*burst {
					t.Errorf("%d nodes took %d in a minute, want their bursts and at most %d", floods, taken, most)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		r := quota.NewRates(quota.Rate{PerSecond: perSecond, Burst: burst, Heavy: heavy})
		taken, seconds := 0, 0
		for ; taken < 10000; seconds++ {
			for {
				if ok, _ := r.Take("back-after-days"); !ok {
					break
				}
				taken++
			}
			time.Sleep(time.Second)
		}
		if least := (10000 - burst) / (perSecond + perSecond/50); seconds < least-1 || seconds > least+2 {
			t.Errorf("one node alone took 10,000 in %d s, want %d", seconds, least)
		}
	})
}

// A single one above the burst is taken where the usage is zero; Give undoes a Take.
func TestRates_TakeN(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := quota.NewRates(quota.Rate{PerSecond: 10, Burst: 100})
		if ok, _ := r.TakeN("edge-1", 300); !ok {
			t.Error("what is above the burst is never taken")
		}
		if ok, after := r.TakeN("edge-1", 1); ok || after != 21 {
			t.Errorf("right after it: %v, %d s", ok, after)
		}
		time.Sleep(30 * time.Second)
		for range 3 {
			if ok, _ := r.TakeN("edge-1", 90); !ok {
				t.Error("what was given back counts")
			}
			r.Give("edge-1", 90)
		}
		if wait := r.Spend("edge-2", 150); wait != 5*time.Second {
			t.Errorf("150 of 100 take %v", wait)
		}
		if wait := r.Spend("edge-2", 1000); wait != 10*time.Second {
			t.Errorf("what is spent is bounded: %v", wait)
		}
	})
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
