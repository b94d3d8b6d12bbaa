package balance_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/skerry-io/skerry/cloud/internal/core/balance"
)

func counts(sessions ...int) (all []balance.Count) {
	for _, n := range sessions {
		all = append(all, balance.Count{Sessions: n, Max: 10_000})
	}
	return all
}

func TestPlan_FirstRound(t *testing.T) {
	for name, c := range map[string]struct {
		own    int
		others []balance.Count
		want   int
	}{
		"alone":                        {5000, nil, 0},
		"a new replica":                {1000, counts(0), 50},
		"a new one, many devices":      {10_000, counts(0), 500},
		"a new one, very many":         {40_000, []balance.Count{{0, 50_000}}, 500},
		"a new one, few devices":       {20, counts(0), 10},
		"a new one, next to none":      {8, counts(0), 0},
		"this one is new":              {0, counts(1000), 0},
		"even":                         {1000, counts(1000, 1000), 0},
		"as uneven as chance":          {1090, counts(960, 950), 0},
		"more uneven":                  {1200, counts(900, 900), 20},
		"of three the fullest":         {600, counts(300, 0), 30},
		"of three the one between":     {310, counts(590, 0), 0},
		"two full ones, one is empty":  {600, counts(600, 0), 20},
		"others are full":              {1000, []balance.Count{{100, 100}, {100, 100}}, 0},
		"others have little room":      {1000, []balance.Count{{95, 100}, {100, 100}}, 5},
		"one says more than it takes":  {1000, []balance.Count{{300, 100}}, 0},
		"as many as it takes, and few": {100, counts(20), 10},
	} {
		var p balance.Plan
		if end, rest := p.Next(c.own, c.others, 0); end != c.want || rest != 0 {
			t.Errorf("%s: %d of %d with others %v, and a rest of %v; want %d", name, end, c.own, c.others, rest, c.want)
		}
	}
}

// A plan continues to the mean, well below its start, and begins again only above that start.
func TestPlan_StopsAtTheMean(t *testing.T) {
	var p balance.Plan
	for _, step := range []struct{ own, other, ended, want int }{
		{120, 100, 0, 0}, {132, 102, 0, 0}, {140, 100, 0, 10}, {130, 110, 10, 10}, {120, 120, 10, 0}, {130, 110, 0, 0}, {150, 90, 0, 10},
	} {
		if end, rest := p.Next(step.own, counts(step.other), step.ended); end != step.want || rest != 0 {
			t.Errorf("%+v: %d, rest %v", step, end, rest)
		}
	}
}

// Where sessions come back to the same replica, as behind a load balancer that leads an address
// always to the same one, rounds become rare.
func TestPlan_SessionsComeBack(t *testing.T) {
	var p balance.Plan
	now, rounds, longest := time.Duration(0), 0, time.Duration(0)
	ended := 0
	for now < 24*time.Hour {
		end, rest := p.Next(1000, counts(0), ended)
		if ended = end; end > 0 {
			rounds++
		}
		now += max(rest, 30*time.Second)
		longest = max(longest, rest)
	}
	if rounds > 36 || longest != time.Hour {
		t.Errorf("%d rounds in a day, the longest rest is %v", rounds, longest)
	}
	// It is tried all the same: once the way is open, rounds follow each other.
	end, _ := p.Next(1000, counts(0), 0)
	if next, rest := p.Next(1000-end, counts(end), end); next == 0 || rest != 0 {
		t.Errorf("after a round that moved %d sessions: %d, rest %v", end, next, rest)
	}
}

// Sessions that are too young to be ended are no sign that devices come back.
func TestPlan_NothingEnded(t *testing.T) {
	var p balance.Plan
	for range 5 {
		if end, rest := p.Next(1000, counts(0), 0); end != 50 || rest != 0 {
			t.Errorf("%d, rest %v", end, rest)
		}
	}
}

// fleet is replicas that each follow a Plan, with devices that dial another one when their
// session ends.
type fleet struct {
	sessions []int
	plans    []balance.Plan
	ended    []int
	rest     []time.Duration
	moved    []int // from each, in all
}

// round has every replica plan with the counts of all, and their devices dial accordingly.
func (f *fleet) round(most int, dial func(from int) (to int)) {
	const lasts = 30 * time.Second
	before := append([]int(nil), f.sessions...)
	for i := range f.sessions {
		if f.rest[i] -= lasts; f.rest[i] > 0 {
			continue
		}
		var others []balance.Count
		for j, n := range before {
			if j != i {
				others = append(others, balance.Count{Sessions: n, Max: most})
			}
		}
		f.ended[i], f.rest[i] = f.plans[i].Next(before[i], others, f.ended[i])
	}
	for i, n := range f.ended {
		f.moved[i] += n
		for range n {
			f.sessions[i]--
			f.sessions[dial(i)]++
		}
	}
}

func TestPlan_Converges(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same each time
	for name, c := range map[string]struct {
		sessions []int
		max      int
		dial     func(from, n int) int
	}{
		"two, the next of a list":        {[]int{10_000, 0}, 10_000, func(from, n int) int { return (from + 1) % n }},
		"three, the next of a list":      {[]int{10_000, 3000, 0}, 10_000, func(from, n int) int { return (from + 1) % n }},
		"two, at random":                 {[]int{5000, 0}, 10_000, func(_, n int) int { return random.IntN(n) }},
		"three, at random":               {[]int{400, 200, 0}, 10_000, func(_, n int) int { return random.IntN(n) }},
		"ten, one is new, at random":     {[]int{1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 0}, 10_000, func(_, n int) int { return random.IntN(n) }},
		"few, at random":                 {[]int{40, 0}, 10_000, func(_, n int) int { return random.IntN(n) }},
		"two emptied ones, at random":    {[]int{3000, 0, 3000, 0}, 10_000, func(_, n int) int { return random.IntN(n) }},
		"a list that begins at the full": {[]int{900, 0, 0}, 10_000, func(from, _ int) int { return (from + 1) % 3 }},
	} {
		t.Run(name, func(t *testing.T) {
			n := len(c.sessions)
			f := &fleet{sessions: append([]int(nil), c.sessions...), plans: make([]balance.Plan, n), ended: make([]int, n), rest: make([]time.Duration, n), moved: make([]int, n)}
			all := 0
			for _, s := range f.sessions {
				all += s
			}
			mean := all / n
			even := func() bool {
				for _, s := range f.sessions {
					if s > mean+mean/10+5+1 {
						return false
					}
				}
				return true
			}
			rounds := 0
			for ; rounds < 2000 && !even(); rounds++ {
				f.round(c.max, func(from int) int { return c.dial(from, n) })
			}
			if !even() {
				t.Fatalf("after %d rounds: %v", rounds, f.sessions)
			}
			for range 300 { // to where they stop
				f.round(c.max, func(from int) int { return c.dial(from, n) })
			}
			stopped := fmt.Sprint(f.moved)
			for range 1000 {
				f.round(c.max, func(from int) int { return c.dial(from, n) })
			}
			if now := fmt.Sprint(f.moved); now != stopped || !even() {
				t.Errorf("sessions go on moving: %s were ended by the replicas, then %s; they have %v", stopped, now, f.sessions)
			}
			t.Logf("even after %d rounds; %s sessions were ended, %v are left", rounds, stopped, f.sessions)
		})
	}
}
