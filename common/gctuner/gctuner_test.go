package gctuner

import (
	"context"
	"errors"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fake is a heap in which something is always alive and something is allocated at a rate.
type fake struct {
	mu          sync.Mutex
	live        float64 // bytes
	dear        time.Duration
	garbage     float64
	percent     int
	collections uint64
	cpu         time.Duration
	releases    int
	bursts      int // that AfterBurst was called for
	watcher     func()
}

func (f *fake) setPercent(to int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.percent
	f.percent = to
	return before
}

func (f *fake) spent() (uint64, time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.collections, f.cpu
}

func (f *fake) onCycle(call func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watcher = call
}

func (f *fake) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.releases++
	f.collect()
}

// collect is called with mu held.
func (f *fake) collect() {
	f.garbage = 0
	f.cpu += f.dear
	if w := f.watcher; w != nil {
		f.watcher = nil
		go w()
	}
}

// run allocates for a time, in steps of a millisecond, and returns the CPU time that
// collecting took.
func (f *fake) run(rate float64, d time.Duration) time.Duration {
	_, before := f.spent()
	const step = time.Millisecond
	for range d / step {
		time.Sleep(step)
		f.mu.Lock()
		if f.garbage += rate * step.Seconds(); f.garbage >= f.live*float64(f.percent)/100 {
			f.collections++
			f.collect()
		}
		f.mu.Unlock()
	}
	_, after := f.spent()
	return after - before
}

func (f *fake) burstOver() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bursts++
}

func (f *fake) state() (percent, releases int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.percent, f.releases
}

const mb = 1e6

// adapted runs do with an adapted heap of 20 MB, of which a collection takes 20 ms.
func adapted(t *testing.T, do func(t *testing.T, f *fake)) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{live: 20 * mb, dear: 20 * time.Millisecond, percent: 77}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			p := Default()
			p.AfterBurst = f.burstOver
			p.adapt(ctx, f)
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.bursts != f.releases {
				t.Errorf("%d bursts were reported, and %d released", f.bursts, f.releases)
			}
		}()
		synctest.Wait()
		do(t, f)
		cancel()
		<-done
		if percent, _ := f.state(); percent != 77 {
			t.Errorf("%d percent remain of 77 at the end", percent)
		}
	})
}

func TestStartIsABurst(t *testing.T) {
	adapted(t, func(t *testing.T, f *fake) {
		if percent, releases := f.state(); percent != 100 || releases != 0 {
			t.Errorf("at the start: %d percent, %d releases", percent, releases)
		}
		if spent := f.run(40*mb, 5*time.Second); spent > 11*20*time.Millisecond { // 200 MB by 20
			t.Errorf("a start of 5 s spent %v on collecting", spent)
		}
		if percent, _ := f.state(); percent < 95 {
			t.Errorf("in the burst: %d percent", percent)
		}
	})
}

// A collection of 20 ms is earned in a second.
func TestRest(t *testing.T) {
	adapted(t, func(t *testing.T, f *fake) {
		f.run(40*mb, 3*time.Second)
		f.run(0.1*mb, 20*time.Second)
		if percent, releases := f.state(); percent > 60 || releases != 1 {
			t.Errorf("20 s after a burst: %d percent, %d releases", percent, releases)
		}
		f.run(0.1*mb, 30*time.Second)
		if spent := f.run(0.1*mb, 10*time.Minute); spent > 620*time.Millisecond { // 60 MB by 2
			t.Errorf("10 minutes of rest spent %v on collecting", spent)
		}
		if percent, releases := f.state(); percent > 22 || releases != 1 {
			t.Errorf("at rest: %d percent, %d releases", percent, releases)
		}
	})
}

// A steady rate of allocation, so fast that collecting at the lowest percentage would cost more
// than its share, finds a percentage between; also where it comes in bursts, as a kubelet's
// housekeeping does.
func TestBetween(t *testing.T) {
	adapted(t, func(t *testing.T, f *fake) {
		for _, fit := range []time.Duration{10 * time.Second, time.Second, 300 * time.Millisecond} {
			round := func() time.Duration {
				return f.run(4*mb*float64(10*time.Second)/float64(fit), fit) + f.run(0, 10*time.Second-fit)
			}
			for range 12 {
				round()
			}
			_, before := f.state()
			spent := time.Duration(0)
			for range 60 {
				spent += round()
			}
			if share := spent.Seconds() / 600; share > 0.0205 { // and not 0.027, as at 15 percent
				t.Errorf("40 MB within %v of each 10 s: collecting takes %.4f of a CPU", fit, share)
			}
			if percent, releases := f.state(); percent > 50 || releases != before {
				t.Errorf("40 MB within %v of each 10 s: %d percent, %d releases", fit, percent, releases-before)
			}
		}
	})
}

func TestBurstAfterRest(t *testing.T) {
	adapted(t, func(t *testing.T, f *fake) {
		f.run(0.1*mb, 2*time.Minute)
		if spent := f.run(40*mb, 5*time.Second); spent > (10+capacity)*20*time.Millisecond { // 10 at Go's own percentage
			t.Errorf("a burst spent %v on collecting", spent)
		}
		if percent, _ := f.state(); percent < 95 {
			t.Errorf("in a burst: %d percent", percent)
		}
	})
}

// Short bursts that come again and again must not have each its release, if a collection is dear.
func TestDearCollections(t *testing.T) {
	adapted(t, func(t *testing.T, f *fake) {
		f.mu.Lock()
		f.live, f.dear = 500*mb, time.Second // a cloudcore with many nodes
		f.mu.Unlock()
		for range 10 {
			f.run(1200*mb, 2*time.Second)
			f.run(0, 58*time.Second)
		}
		if percent, releases := f.state(); percent < 60 || releases != 0 {
			t.Errorf("%d percent, %d releases: each costs a second", percent, releases)
		}
		f.run(0, 30*time.Minute)
		if percent, releases := f.state(); percent != 15 || releases != 1 {
			t.Errorf("half an hour after the last: %d percent, %d releases", percent, releases)
		}
	})
}

// A process that was suspended, or whose clock jumped, has no more than all.
func TestBudget(t *testing.T) {
	now := time.Now()
	s := budget{policy: Default(), cost: time.Millisecond, at: now}
	s.refill(now.Add(1000 * time.Hour))
	if s.left != capacity || s.percent() != 15 || s.next() != 0 {
		t.Errorf("after a long time: %v, %d percent, next in %v", s.left, s.percent(), s.next())
	}
	s.spend(1000, time.Second)
	if s.left != 0 || s.percent() != 100 || !s.exhausted || s.burstOver() {
		t.Errorf("after many collections: %v, %d percent", s.left, s.percent())
	}
	s.refill(now)
	if s.left < 0 {
		t.Errorf("a clock that went back left %v", s.left)
	}
}

// The Go runtime's driver reports each collection, does not count forced ones, and keeps its
// percentage only for a Run.
func TestRuntime(t *testing.T) {
	collected := make(chan struct{}, 1)
	for range 3 {
		golang{}.onCycle(func() { collected <- struct{}{} })
		runtime.GC()
		<-collected
	}
	before, _ := golang{}.spent()
	golang{}.release()
	if after, cpu := (golang{}).spent(); after != before || cpu <= 0 {
		t.Errorf("a release counts as %d collections, all of which took %v", after-before, cpu)
	}
	t.Setenv("GOGC", "")
	defer debug.SetGCPercent(debug.SetGCPercent(55))
	want := errors.New("the end")
	err := Run(t.Context(), Default(), func(context.Context) error {
		for percent() == 55 {
			runtime.Gosched()
		}
		return want
	})
	if !errors.Is(err, want) || percent() != 55 {
		t.Errorf("%v, %d percent after it", err, percent())
	}
	t.Setenv("GOGC", "55")
	if err := Run(t.Context(), Default(), func(context.Context) error {
		if percent() != 55 {
			t.Error("GOGC is set, and is not honoured")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func percent() uint64 {
	samples := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64()
}
