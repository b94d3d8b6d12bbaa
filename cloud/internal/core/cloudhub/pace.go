package cloudhub

import (
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/quota"
)

// charges bounds the charges of nodes, in seconds, over all their sessions: a node that connects
// again has no more credit. A device that keeps to its bounds never uses up the credit; above it,
// its link is not read until the usage has decayed.
var charges = quota.Rate{PerSecond: 1, Burst: 10}

// openings bounds the links of each node: a session costs kube-apiserver and cloudcore 10 ms of CPU
// before its node has sent anything that is charged, so nodes that only connect and leave would
// delay all others. A device whose network comes and goes opens no more than one a second for long.
var openings = quota.Rate{PerSecond: 1, Burst: 60, Heavy: 10}

const (
	// refusedFor is how long a link above openings waits for its refusal, in its node's share of
	// the handshakes.
	refusedFor = time.Second
	// opening is charged for each session: else a device that connects again and again would not
	// pay for its handshakes.
	opening = 50 * time.Millisecond
	// perMessage is charged for each message that is read: that of acknowledgements, heartbeats and
	// whatever else no part charges for. 48 events on the way with their acknowledgements are 2 ms.
	perMessage = 20 * time.Microsecond
	// shortestPause is the shortest time that is worth a timer: below it a node owes a little more
	// than its credit.
	shortestPause = 100 * time.Millisecond
	// longestPause is for how long a link is not read at a time: heartbeats must come through,
	// which are read before all else.
	longestPause = 5 * time.Second
)

// pace is when a session's link is not read. The zero pace of no charges never pauses.
type pace struct {
	node    types.NodeName
	charges *quota.Rates
	began   time.Time

	until   atomic.Int64 // in nanoseconds after began: a clock that is set back makes no pause longer
	resting atomic.Bool  // timer runs
	timer   *time.Timer  // owned by the reading goroutine
}

// charge may be called by any goroutine.
func (p *pace) charge(d time.Duration) {
	pause := min(p.charges.Spend(p.node, d.Seconds()), longestPause)
	if pause < shortestPause {
		return
	}
	until := int64(time.Since(p.began) + pause)
	for {
		before := p.until.Load()
		if before >= until || p.until.CompareAndSwap(before, until) {
			return
		}
	}
}

// paused reports whether the link is not to be read now; began, whether that is so from now on.
// resume is called when it may be.
func (p *pace) paused(resume func()) (paused, began bool) {
	if p.resting.Load() {
		return true, false
	}
	d := time.Duration(p.until.Load()) - time.Since(p.began)
	if d <= 0 {
		return false, false
	}
	p.resting.Store(true)
	p.timer = time.AfterFunc(d, func() {
		p.resting.Store(false)
		resume()
	})
	return true, true
}

func (p *pace) stop() {
	if p.timer != nil {
		p.timer.Stop()
	}
}
