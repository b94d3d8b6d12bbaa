package campaign

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// thing is the target of a fault: two faults never break one at the same time.
func (s Step) thing() string {
	switch s.Fault {
	case KillCloud, PauseCloud, Late:
		return fmt.Sprint("cloudcore ", s.Target)
	case KillEdge, PauseEdge, BadPage, BadRecord, Rot, Clock, KillRuntime, Reboot, Shutdown, Pressure:
		return fmt.Sprint("edgecore ", s.Target)
	case Cut, Flap, Silent, Thin, DeleteNode:
		return fmt.Sprint("line ", s.Target)
	case Full:
		return fmt.Sprint("disk ", s.Target)
	case Refuse, Deny, Down, Isolate, Lag:
		return fmt.Sprint("proxy ", s.Target)
	}
	return "plane"
}

// offline reports for a shutdown whether the device has no link during it.
func (s Step) offline() bool { return s.At%2 == 0 }

// things are all that a fault breaks.
func (s Step) things() []string {
	switch s.Fault {
	case Late:
		return []string{s.thing(), fmt.Sprint("proxy ", s.Target), "the other cloudcore"}
	case BadRecord, Reboot, Shutdown, Pressure:
		return []string{s.thing(), fmt.Sprint("line ", s.Target)}
	}
	return []string{s.thing()}
}

// Plan draws a schedule: the same seed and options give the same one. All faults are over
// at the end.
func Plan(o Options) []Step {
	if len(o.Steps) > 0 {
		return o.Steps
	}
	draw := rand.New(rand.NewPCG(o.Seed, 0))
	var steps []Step
	busy := map[string]time.Duration{}
	// Often enough that faults meet: with more edges and cloudcores there is more to break.
	for at := o.Pause / 2; ; at += time.Duration(draw.Float64() * 2 * float64(o.Pause)) {
		if at >= o.Length {
			break
		}
		s := Step{At: at, Fault: o.Faults[draw.IntN(len(o.Faults))]}
		s.For = shortest(s.Fault) + time.Duration((0.05+0.95*draw.Float64()*draw.Float64())*float64(longest(s.Fault)))
		targets := o.Clouds
		if !slices.Contains([]Fault{KillCloud, PauseCloud, Refuse, Deny, Down, Isolate, Lag, Late}, s.Fault) {
			targets = o.Edges - o.Calm
		}
		s.Target = draw.IntN(targets)
		if s.thing() == "plane" {
			s.Target = 0
		}
		if s.At+s.For > o.Length || slices.ContainsFunc(s.things(), func(thing string) bool { return busy[thing] > s.At }) {
			continue
		}
		// A pause between two, in which the broken part may recover.
		for _, thing := range s.things() {
			busy[thing] = s.At + s.For + recovery(s.Fault)
		}
		steps = append(steps, s)
	}
	slices.SortStableFunc(steps, func(a, b Step) int { return cmp.Compare(a.At, b.At) })
	return steps
}

// shortest is how long a fault lasts at least.
func shortest(f Fault) time.Duration {
	if f == Late {
		return 8 * time.Second // until edges have another cloudcore, and have written
	}
	return 0
}

// longest is how much longer than that a fault lasts at most.
func longest(f Fault) time.Duration {
	switch f {
	case KillCloud, KillEdge, BadPage, Rot:
		return 5 * time.Second
	case KillPlane:
		return 4 * time.Second
	case Lag, Isolate, OlderCopy:
		return 20 * time.Second
	}
	return 12 * time.Second
}

func recovery(f Fault) time.Duration {
	if f == OlderCopy || f == KillPlane {
		return 15 * time.Second // it also takes a time to start
	}
	if f == Reboot || f == Shutdown || f == Pressure {
		return 30 * time.Second
	}
	return 2 * time.Second
}

// ParseFaults reads names with commas between them; "" is all.
func ParseFaults(text string) ([]Fault, error) {
	if text == "" {
		return AllFaults(), nil
	}
	var found []Fault
	for name := range strings.SplitSeq(text, ",") {
		f := Fault(strings.TrimSpace(name))
		if all := append(AllFaults(), KillRuntime, Reboot); !slices.Contains(all, f) {
			return nil, fmt.Errorf("there is no fault %q: there are %v", f, all)
		}
		found = append(found, f)
	}
	return found, nil
}
