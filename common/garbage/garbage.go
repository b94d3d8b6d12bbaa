// Package garbage adapts how much garbage a process may hold to what it does: much while it works, little while it rests.
//
// Go's collector runs when the heap has grown by GOGC percent since the last time. One number for a whole life is either dear in bursts, when a low one makes
// the collector run many times a second, or dear at rest, when a high one keeps what the last burst has left: a process that rests allocates too little to get
// there soon. So While lets a process earn collections with time, at the rate at which they take a share of one CPU, and save up a few of them. The percentage
// follows the savings: low while there are many, Go's own when they are used up. A burst uses them up within a few collections; a process that allocates
// steadily finds the percentage at which collecting takes the share. When a burst is over the heap is collected once, and what is free is given back to the system.
//
// It owns the process' GC percentage while it runs (debug.SetGCPercent): one While at a time. It stands back where GOGC is set in the environment, for whoever
// set it knows better, and leaves GOMEMLIMIT alone, which goes before any percentage. While all is saved up it does nothing between collections.
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
	// Share is how much of one CPU collecting takes at most, as long as less than Burst percent is enough for that: 0.01 is 10 ms a second.
	Share float64
}

// Default keeps a seventh of what lives as garbage while the process rests, and is Go's own in a burst. A collection of edgecore with ten pods takes some 20 ms of a
// CPU, and twice that by the runtime's count where others want the CPU too; at rest it has one each 2 to 3 s, and may have one each second.
func Default() Policy { return Policy{Rest: 15, Burst: 100, Share: 0.02} }

const (
	most      = 5               // collections that are saved up at most: so many a burst can cost
	recovered = 3               // so many are there again when a burst is taken to be over
	shortest  = time.Second     // between two looks at the savings
	longest   = 2 * time.Minute // the same: after that time without a collection the runtime collects by itself
)

// savings are what a process has of collections that it may spend. Not for concurrent use.
type savings struct {
	policy Policy
	left   float64       // collections, 0 to most
	price  time.Duration // CPU time of the last collections, each
	at     time.Time     // when left was right
	broke  bool          // all were spent, and the burst that spent them is not over
}

// earn adds what the time since the last call brought.
func (s *savings) earn(now time.Time) {
	if s.price > 0 {
		s.left = min(s.left+float64(max(now.Sub(s.at), 0))*s.policy.Share/float64(s.price), most)
	}
	s.at = now
}

// spend takes off collections that cost that much CPU time together.
func (s *savings) spend(collections uint64, cost time.Duration) {
	s.price = max(cost/time.Duration(collections), 1)
	s.left = max(s.left-float64(collections), 0)
	s.broke = s.broke || s.left == 0
}

// over reports, once, that the burst is over that used up the savings.
func (s *savings) over() bool {
	if !s.broke || s.left < recovered {
		return false
	}
	s.broke = false
	return true
}

// percent is what the savings allow. It rises slowly at first: a heap is as large as the highest percentage of the last minutes made it, so that a process that
// spends now more, now less, shall not have both ends.
func (s *savings) percent() int {
	spent := 1 - s.left/most
	return s.policy.Rest + int(spent*spent*float64(s.policy.Burst-s.policy.Rest))
}

// next is after how long another collection will have been earned; 0 where all is saved up.
func (s *savings) next() time.Duration {
	if s.left >= most {
		return 0
	}
	return min(max(time.Duration(float64(s.price)/s.policy.Share), shortest), longest)
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
	count, cpu := h.spent()
	mine := savings{policy: p, at: time.Now(), broke: true} // a start is a burst
	if count > 0 {
		mine.price = cpu / time.Duration(count)
	}
	percent := mine.percent()
	before := h.setPercent(percent)
	defer func() { h.setPercent(before) }()
	collected := make(chan struct{}, 1) // one is as good as many: spent tells how many
	tell := func() {
		select {
		case collected <- struct{}{}:
		default:
		}
	}
	h.watch(tell)
	look := time.NewTimer(max(mine.next(), shortest))
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-collected:
			h.watch(tell)
		case <-look.C:
		}
		mine.earn(time.Now())
		nowCount, nowCPU := h.spent()
		if nowCount > count {
			mine.spend(nowCount-count, nowCPU-cpu)
		}
		count, cpu = nowCount, nowCPU
		if to := mine.percent(); to != percent { // a change stops the world for some microseconds
			h.setPercent(to)
			percent = to
		}
		if mine.over() {
			h.release()
			count, cpu = h.spent()
			log.V(4).Info("A burst is over: memory was given back", "percent", percent)
		}
		if wait := mine.next(); wait > 0 {
			look.Reset(wait)
		} else {
			look.Stop()
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
