// Package gctuner adapts the GC percentage (GOGC) of a process to its load: low while it idles,
// Go's default in a burst.
//
// Go's collector runs when the heap has grown by GOGC percent since the last cycle. One number for
// a whole life is either expensive in bursts, when a low one makes the collector run many times a
// second, or expensive at rest, when a high one keeps the garbage of the last burst: an idle
// process allocates too little to reach the next cycle. So Run gives the process a budget of GC
// cycles that refills with time, at the rate at which cycles take a fixed share of one CPU. The
// percentage follows the budget: low while it is full, Policy.Burst when it is exhausted. When a
// burst is over, the heap is collected once and free pages are returned to the operating system.
//
// It owns the process' GC percentage while it runs (debug.SetGCPercent): one Run at a time. It is
// disabled where GOGC is set in the environment, and leaves GOMEMLIMIT alone, which overrides any
// percentage. With a full budget it is idle between cycles: an idle device isn't woken.
package gctuner

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"k8s.io/klog/v2"
)

// A Policy trades memory for CPU time.
type Policy struct {
	// Rest and Burst bound the percentage (GOGC): the garbage in addition to live memory, in
	// percent of it.
	Rest, Burst int
	// Share is how much of one CPU garbage collection may take, as long as less than Burst percent
	// is enough for that: 0.01 is 10 ms a second.
	Share float64
	// AfterBurst is called when a burst is over and its memory is released, by Run's own goroutine;
	// nil: no callback.
	AfterBurst func()
}

// Default keeps a seventh of live memory as garbage at rest, and is Go's own in a burst. A GC
// cycle of edgecore with ten pods takes some 20 ms of CPU, and twice that by the runtime's
// count where other processes want the CPU too; at rest it has one cycle every 2 to 3 s, and
// may have one a second.
func Default() Policy { return Policy{Rest: 15, Burst: 100, Share: 0.02} }

const (
	capacity  = 5               // cycles that the budget holds: the maximum cost of a burst
	recovered = 3               // the budget at which a burst is taken to be over
	shortest  = time.Second     // between two checks of the budget
	longest   = 2 * time.Minute // the same: after that time without a cycle the runtime starts one itself
)

// budget is how many GC cycles the process may spend. Not for concurrent use.
type budget struct {
	policy    Policy
	left      float64       // cycles, 0 to capacity
	cost      time.Duration // CPU time of each of the last cycles
	at        time.Time     // when left was right
	exhausted bool          // all was spent, and the burst that spent it is not over
}

// refill adds the budget of the time since the last call.
func (b *budget) refill(now time.Time) {
	if b.cost > 0 {
		earned := float64(max(now.Sub(b.at), 0)) * b.policy.Share / float64(b.cost)
		b.left = min(b.left+earned, capacity)
	}
	b.at = now
}

// spend takes off cycles that cost that much CPU time together.
func (b *budget) spend(cycles uint64, cost time.Duration) {
	b.cost = max(cost/time.Duration(cycles), 1)
	b.left = max(b.left-float64(cycles), 0)
	b.exhausted = b.exhausted || b.left == 0
}

// burstOver reports, once, that the burst is over that exhausted the budget.
func (b *budget) burstOver() bool {
	if !b.exhausted || b.left < recovered {
		return false
	}
	b.exhausted = false
	return true
}

// percent is the GC percentage that the budget allows. It rises slowly at first: a heap is as large
// as the highest percentage of the last minutes made it, so a process whose load varies must not
// pay for both ends.
func (b *budget) percent() int {
	spent := 1 - b.left/capacity
	return b.policy.Rest + int(spent*spent*float64(b.policy.Burst-b.policy.Rest))
}

// next is the time until another cycle is earned; 0 with a full budget.
func (b *budget) next() time.Duration {
	if b.left >= capacity {
		return 0
	}
	return min(max(time.Duration(float64(b.cost)/b.policy.Share), shortest), longest)
}

// heap is the part of the runtime that is used here.
type heap interface {
	// setPercent changes the percentage and returns the previous one.
	setPercent(int) int
	// spent is how many cycles ran, without those of release, and the CPU time of all of them.
	spent() (cycles uint64, cpu time.Duration)
	// onCycle has f called once, after the next cycle. f must not block.
	onCycle(f func())
	// release collects and returns free pages to the operating system.
	release()
}

// Run calls run, adapts the percentage until it returns, and returns its error.
func Run(ctx context.Context, policy Policy, run func(context.Context) error) error {
	if os.Getenv("GOGC") != "" {
		return run(ctx)
	}
	tuning, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		policy.adapt(tuning, golang{})
	}()
	defer func() {
		stop()
		<-done
	}()
	return run(ctx)
}

// adapt keeps the heap within the policy until ctx ends, and then restores the previous percentage.
func (p Policy) adapt(ctx context.Context, h heap) {
	log := klog.FromContext(ctx)
	count, cpu := h.spent()
	b := budget{policy: p, at: time.Now(), exhausted: true} // a start is a burst
	if count > 0 {
		b.cost = cpu / time.Duration(count)
	}
	percent := b.percent()
	previous := h.setPercent(percent)
	defer func() { h.setPercent(previous) }()
	cycled := make(chan struct{}, 1) // one signal is enough for many: spent has the count
	notify := func() {
		select {
		case cycled <- struct{}{}:
		default:
		}
	}
	h.onCycle(notify)
	timer := time.NewTimer(max(b.next(), shortest))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-cycled:
			h.onCycle(notify)
		case <-timer.C:
		}
		b.refill(time.Now())
		nowCount, nowCPU := h.spent()
		if nowCount > count {
			b.spend(nowCount-count, nowCPU-cpu)
		}
		count, cpu = nowCount, nowCPU
		if to := b.percent(); to != percent { // a change stops the world for some microseconds
			h.setPercent(to)
			percent = to
		}
		if b.burstOver() {
			h.release()
			count, cpu = h.spent()
			if p.AfterBurst != nil {
				p.AfterBurst()
			}
			log.V(4).Info("Released memory after a burst", "gcPercent", percent)
		}
		if wait := b.next(); wait > 0 {
			timer.Reset(wait)
		} else {
			timer.Stop()
		}
	}
}

// golang is the heap of this process.
type golang struct{}

func (golang) setPercent(percent int) int { return debug.SetGCPercent(percent) }

func (golang) spent() (cycles uint64, cpu time.Duration) {
	// Marking by processors that would idle counts: to Go they are idle, to other processes and the
	// battery they are not.
	samples := []metrics.Sample{
		{Name: "/gc/cycles/automatic:gc-cycles"}, {Name: "/cpu/classes/gc/total:cpu-seconds"},
	}
	metrics.Read(samples)
	return samples[0].Value.Uint64(), time.Duration(samples[1].Value.Float64() * float64(time.Second))
}

func (golang) release() { debug.FreeOSMemory() }

// sentinel is garbage at once. It has a pointer: without one it might share a block with live
// objects (runtime.AddCleanup).
type sentinel struct{ _ *sentinel }

func (golang) onCycle(f func()) {
	runtime.AddCleanup(new(sentinel), func(call func()) { call() }, f)
}
