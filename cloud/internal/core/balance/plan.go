package balance

import "time"

// Count is a replica's report.
type Count struct {
	Sessions int `json:"sessions"`
	Max      int `json:"max"` // it takes no more
}

const (
	// few is how many sessions more than a tenth above the mean a replica may have before it ends
	// any: the devices' random choices are not quite even.
	few = 5
	// A round ends a tenth of the surplus, which is 1 % a second, within these bounds: 1 and 50 a
	// second.
	leastRound, mostRound = 10, 500
	// restMin and restMax are the times without a round when sessions have come back: a load
	// balancer may lead a device to the same replica again and again.
	restMin, restMax = time.Minute, time.Hour
)

// Plan decides how many sessions a replica ends. The zero Plan has ended 0. It uses no clock and
// starts no goroutine; owned by one goroutine.
type Plan struct {
	active bool // from a clear surplus until the surplus is 0
	before int  // the surplus when a round was last asked for
	futile int  // rounds in a row whose sessions came back
}

// Next returns how many sessions to end in the round that begins now; a round lasts for a period.
// others are the replicas that serve, counted after the last round, and ended is the number of
// sessions that it has ended. Where rest is not 0, Next is not to be called again before.
func (p *Plan) Next(own int, others []Count, ended int) (end int, rest time.Duration) {
	mean, excess := surplus(own, others)
	if excess == 0 || !p.active && own <= mean+mean/10+few {
		*p = Plan{}
		return 0, 0
	}
	p.active = true
	if ended > 0 {
		if excess >= p.before {
			p.futile++
			return 0, min(restMin<<min(p.futile-1, 6), restMax)
		}
		p.futile = 0
	}
	p.before = excess
	return min(excess, max(leastRound, min(excess/10, mostRound))), 0
}

// surplus is a replica's share of all sessions, and how many it has above that for which others
// have room below theirs.
func surplus(own int, others []Count) (mean, excess int) {
	all := own
	for _, o := range others {
		all += o.Sessions
	}
	mean = (all + len(others)) / (len(others) + 1) // rounded up
	room := 0
	for _, o := range others {
		room += max(0, min(mean, o.Max)-o.Sessions)
	}
	return mean, max(0, min(own-mean, room))
}
