// Package garbage adapts how much garbage a process may hold to what it does: much while it works, little while it rests.
//
// Go's collector runs when the heap has grown by GOGC percent since the last time. One number for a whole life is either dear in bursts, when a low one makes
// the collector run many times a second, or dear at rest, when a high one keeps what the last burst has left: a process that rests allocates too little to ever
// get there. So While sets it again after each collection, such that collecting takes no more than a share of a CPU, within bounds; and when a burst has ended it
// collects once and gives what is free back to the system.
//
// It owns the process' GC percentage while it runs (debug.SetGCPercent): one While at a time. It stands back where GOGC is set in the environment, for whoever
// set it knows better, and leaves GOMEMLIMIT alone, which goes before any percentage. It asks for nothing while nothing is collected: a timer runs only after a burst.
package garbage

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"k8s.io/klog/v2"
)

// A Policy is what memory may cost in CPU time, and the other way round.
type Policy struct {
	// Rest and Burst bound the percentage (GOGC): the garbage that is allowed beside what lives, in percent of that.
	Rest, Burst int
	// Share is how much of one CPU collecting may take before memory is given for it: 0.01 is 10 ms a second. Within a burst that needs more than Burst percent it
	// takes more.
	Share float64
}

// Default keeps a tenth of what lives as garbage while the process rests, and is Go's own in a burst.
func Default() Policy { return Policy{Rest: 10, Burst: 100, Share: 0.005} }

const (
	// A burst has ended when the next collection is overdue so long that one would be within the share again, but not sooner than this: what comes every few
	// seconds, as probes and housekeeping do, is one burst, or none.
	shortestSettle = 5 * time.Second
	// The Go runtime itself collects after two minutes without a collection.
	longestSettle = 2 * time.Minute
	// steepest is how many times less garbage one collection may allow than the one before: a lull within a burst is no rest.
	steepest = 2
)

// settle is how long nothing must have been collected, where a collection costs that much, for a burst to have ended.
func (p Policy) settle(cost time.Duration) time.Duration {
	return min(max(time.Duration(float64(cost)/p.Share), shortestSettle), longestSettle)
}

// next is the percentage after collections that cost that much CPU time in that time. The time between two grows as the percentage does, so a share of
// twice what it may be wants twice the percentage.
func (p Policy) next(percent int, cost, took time.Duration) int {
	wanted := p.Burst
	if took > 0 {
		share := float64(cost) / float64(took)
		wanted = int(min(float64(percent)*share/p.Share, float64(p.Burst)))
	}
	return min(max(wanted, percent/steepest, p.Rest), p.Burst)
}

// heap is the part of the runtime that is used here.
type heap interface {
	// setPercent changes the percentage and returns the one before.
	setPercent(int) int
	// spent is how often it was collected, but for release, and the CPU time that collecting took in all.
	spent() (collections uint64, cpu time.Duration)
	// watch has collected called once, after the next collection. It must not block.
	watch(collected func())
	// release collects and gives what is free to the system.
	release()
}

// While calls run, with the percentage adapted until it returns, and returns what it returned.
func While(ctx context.Context, policy Policy, run func(context.Context) error) error {
	if os.Getenv("GOGC") != "" {
		return run(ctx)
	}
	beside, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		policy.adapt(beside, golang{})
	}()
	defer func() {
		stop()
		<-done
	}()
	return run(ctx)
}

// adapt keeps the heap within the policy until ctx ends, and then puts the percentage back that was before.
func (p Policy) adapt(ctx context.Context, h heap) {
	log := klog.FromContext(ctx)
	percent := p.Burst // a start is a burst
	before := h.setPercent(percent)
	defer func() { h.setPercent(before) }()
	set := func(to int) {
		if to != percent { // a change stops the world for some microseconds
			h.setPercent(to)
			percent = to
		}
	}
	collected := make(chan struct{}, 1) // one is as good as many: spent tells how many
	tell := func() {
		select {
		case collected <- struct{}{}:
		default:
		}
	}
	h.watch(tell)
	count, cpu := h.spent()
	last := time.Now()
	settled := time.NewTimer(shortestSettle)
	defer settled.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-collected:
			h.watch(tell)
			nowCount, nowCPU := h.spent()
			if nowCount == count {
				cpu = nowCPU // of release: its cost is nobody's
				continue
			}
			now := time.Now()
			cost := nowCPU - cpu
			set(p.next(percent, cost, now.Sub(last)))
			if percent > p.Rest {
				settled.Reset(p.settle(cost / time.Duration(nowCount-count)))
			} else {
				settled.Stop()
			}
			count, cpu, last = nowCount, nowCPU, now
		case <-settled.C:
			set(p.Rest)
			h.release()
			log.V(4).Info("At rest: memory was given back", "percent", percent)
		}
	}
}

// golang is the heap of this process.
type golang struct{}

func (golang) setPercent(percent int) int { return debug.SetGCPercent(percent) }

func (golang) spent() (collections uint64, cpu time.Duration) {
	// What is marked by processors that would idle is counted: here they are idle, for other processes and the battery they are not.
	samples := []metrics.Sample{{Name: "/gc/cycles/automatic:gc-cycles"}, {Name: "/cpu/classes/gc/total:cpu-seconds"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64(), time.Duration(samples[1].Value.Float64() * float64(time.Second))
}

func (golang) release() { debug.FreeOSMemory() }

// sentinel is garbage from the start. It has a pointer, for without one it might be put into a block with others that live (runtime.AddCleanup).
type sentinel struct{ _ *sentinel }

func (golang) watch(collected func()) {
	runtime.AddCleanup(new(sentinel), func(call func()) { call() }, collected)
}
