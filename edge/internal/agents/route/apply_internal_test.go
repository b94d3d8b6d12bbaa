package route

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// wire is a node whose network some routes cut off.
type wire struct {
	bad     []string // these routes cut the node off
	refused []string // these are refused by the kernel
	outages int      // so many sets meet an outage that ends when the route is withdrawn
	lasting bool     // an outage begins with the first set, and stays
	noDisk  bool
	never   []string // routes in the kernel that were never watched

	has     map[string]bool
	broken  bool
	sets    int
	results []string
	stop    func() // called at the first set
}

func (w *wire) answers(context.Context) error {
	if w.broken || w.lasting && w.sets > 0 {
		return errors.New("no route to host")
	}
	for name := range w.has {
		if slices.Contains(w.bad, name) {
			return errors.New("no route to host")
		}
	}
	return nil
}

func (w *wire) set(_ context.Context, c change) bool {
	if slices.Contains(w.refused, c.owner) {
		return false
	}
	w.has[c.owner] = true
	if w.sets++; w.sets <= w.outages {
		w.broken = true
	}
	if w.stop != nil {
		w.broken = true
		w.stop()
	}
	return true
}

func (w *wire) undo(_ context.Context, c change)   { delete(w.has, c.owner); w.broken = false }
func (w *wire) remove(_ context.Context, c change) { delete(w.has, c.owner) }

func (w *wire) unproven(time.Time) (all []change, due bool) {
	for _, name := range w.never {
		all = append(all, change{owner: name})
	}
	return all, true
}

func (w *wire) trying(context.Context, []change) error {
	if w.noDisk {
		return errors.New("no space left on device")
	}
	return nil
}

func (w *wire) ended(_ context.Context, all []change, v verdict, _ error) {
	for _, c := range all {
		w.results = append(w.results, fmt.Sprint(c.owner, " ", []string{"proven", "refused", "unwritten", "interrupted", "cutOff", "postponed"}[v]))
	}
}

func TestSafety(t *testing.T) {
	for name, c := range map[string]struct {
		wire     wire
		sets     string // names; with a ! it is trusted
		offline  bool
		stopped  bool
		standing string // routes set at the end
		results  string
	}{
		"all well":                           {sets: "a b", standing: "a b", results: "a proven, b proven"},
		"without a link nothing is watched":  {sets: "a b", offline: true, standing: "a b"},
		"no target answers before":           {wire: wire{broken: true}, sets: "a", standing: "a"},
		"one of four cuts the node off":      {wire: wire{bad: []string{"c"}}, sets: "a b c d", standing: "a b d", results: "a proven, b proven, c cutOff, d proven"},
		"two of four":                        {wire: wire{bad: []string{"a", "d"}}, sets: "a b c d", standing: "b c", results: "a cutOff, b proven, c proven, d cutOff"},
		"a cable was cut at the same moment": {wire: wire{outages: 1}, sets: "a", standing: "a", results: "a proven"},
		"an outage that stays":               {wire: wire{lasting: true}, sets: "a b", results: "a postponed, b postponed"},
		"the kernel refuses one":             {wire: wire{refused: []string{"a"}}, sets: "a b", standing: "b", results: "a refused, b proven"},
		"the disk is full":                   {wire: wire{noDisk: true}, sets: "a", results: "a unwritten"},
		"a repair is not watched":            {wire: wire{bad: []string{"a"}}, sets: "a!", standing: "a"},
		"edgecore ends in the middle":        {sets: "a", stopped: true, results: "a interrupted"},
		"standing routes are proven":         {wire: wire{never: []string{"a", "b"}}, standing: "a b", results: "a proven, b proven"},
		"a standing route cuts the node off": {wire: wire{never: []string{"a", "b"}, bad: []string{"b"}}, standing: "a", results: "a proven, b cutOff"},
		"standing routes are not the cause":  {wire: wire{never: []string{"a"}, lasting: true, sets: 1}, standing: "a", results: "a interrupted"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := c.wire
				w.has = map[string]bool{}
				for _, name := range w.never {
					w.has[name] = true
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.stopped {
					w.stop = cancel
				}
				s := safety{prober: prober{cloud: []Probe{{"the cloud", w.answers}}, timeout: time.Second, mute: map[netip.Addr]time.Time{}}, routes: &w}
				d := decision{linked: !c.offline}
				for _, name := range strings.Fields(c.sets) {
					owner, trusted := strings.CutSuffix(name, "!")
					d.sets = append(d.sets, change{owner: owner, trusted: trusted})
				}
				s.apply(ctx, time.Now(), d)
				if diff := cmp.Diff(c.standing, strings.Join(slices.Sorted(maps.Keys(w.has)), " ")); diff != "" {
					t.Errorf("routes (-want +got):\n%s", diff)
				}
				slices.Sort(w.results)
				if diff := cmp.Diff(c.results, strings.Join(w.results, ", ")); diff != "" {
					t.Errorf("results (-want +got):\n%s", diff)
				}
			})
		})
	}
}
