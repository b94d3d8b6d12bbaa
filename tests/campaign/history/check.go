package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Check lists everything in which the history breaks a rule. It may be called for a part of a
// campaign as long as that has its Final records.
func (h History) Check() (found []Violation) {
	c := newChecker(h)
	for _, check := range []func() []Violation{c.newest, c.wanted, c.dead, c.kept, c.exact, c.order} {
		found = append(found, check()...)
	}
	found = slices.Concat(found, answers(h), single(h), register(h))
	for i := range found {
		found[i].Faults = h.around(found[i].Records)
	}
	return found
}

// SoFar lists the violations of a running campaign: an object that may yet arrive is not missed.
func (h History) SoFar() []Violation {
	c := newChecker(h)
	return slices.Concat(c.newest(), c.wanted(), c.dead(), c.order(), answers(h), single(h))
}

// Unsettled lists the differences between the Final records.
func (h History) Unsettled() []Violation {
	c := newChecker(h)
	return append(c.kept(), c.exact()...)
}

// reach is how long before a violation a fault may have begun its work.
const reach = 20 * time.Second

func (h History) around(records []Record) (faults []Record) {
	if len(records) == 0 {
		return nil
	}
	first, last := records[0].At, records[len(records)-1].At
	for _, f := range append(h.each(Fault), h.each(Restore)...) {
		if f.At <= last && f.End >= max(first, last-reach)-reach {
			faults = append(faults, f)
		}
	}
	return faults
}

type checker struct {
	history  History
	restores []Record
	damages  []Record
	drops    []Record
	puts     map[object][]Record // in order
	removes  map[object][]Record
	finals   map[string]map[object]Record // by viewer
}

func newChecker(h History) *checker {
	c := &checker{history: h, restores: h.each(Restore), damages: h.each(Damage), drops: h.each(Dropped)}
	c.puts, c.removes, c.finals = map[object][]Record{}, map[object][]Record{}, map[string]map[object]Record{}
	for _, r := range c.history {
		switch r.Kind {
		case Put:
			c.puts[r.object()] = append(c.puts[r.object()], r)
		case Remove:
			c.removes[r.object()] = append(c.removes[r.object()], r)
		case Final:
			if c.finals[r.Who] == nil {
				c.finals[r.Who] = map[object]Record{}
			}
			c.finals[r.Who][r.object()] = r
		}
	}
	return c
}

// lost finds a restore that may have undone a change in the cloud from at to end.
func (c *checker) lost(at, end time.Duration) (Record, bool) {
	for _, r := range c.restores {
		if end >= r.At && at <= r.End {
			return r, true
		}
	}
	return Record{}, false
}

// put finds the write of a value.
func (c *checker) put(o object, value int64) (Record, bool) {
	for _, p := range c.puts[o] {
		if p.Value == value {
			return p, true
		}
	}
	return Record{}, false
}

// newest looks for older values after newer ones. A restored cluster is the only one that may show
// them, and only a value that it had lost may be followed by an older one.
func (c *checker) newest() (found []Violation) {
	type view struct {
		who string
		object
	}
	last := map[view]Record{}
	for _, r := range c.history {
		if r.Kind != Seen && r.Kind != Going {
			continue
		}
		v := view{r.Who, r.object()}
		before, again := last[v]
		last[v] = r
		if !again || r.Value >= before.Value {
			continue
		}
		if c.undone(before, r) || c.dropped(before, r) {
			continue
		}
		found = append(found, Violation{Rule: Newest, Records: []Record{before, r},
			Text: fmt.Sprintf("%s saw value %d of %s %s after %d", r.Who, r.Value, r.Resource, r.Name, before.Value)})
	}
	return found
}

// undone reports whether a restore explains that an older value was seen after a newer one.
func (c *checker) undone(newer, older Record) bool {
	if newer.Who == Cloud {
		// kube-apiserver itself was asked: it went back in between, or it did not.
		return slices.ContainsFunc(c.restores, func(r Record) bool { return r.End >= newer.At && r.At <= older.At })
	}
	// A pod that the restored cluster has not: its node's writes to it are refused, and its earlier
	// status is not shown any more.
	if made := c.puts[newer.object()]; newer.Resource == pods && len(made) > 0 && made[0].Who == Cloud {
		if r, lost := c.lost(made[0].At, max(made[0].At, made[0].End)); lost && r.At <= older.At {
			return true
		}
	}
	p, ok := c.put(newer.object(), newer.Value)
	if !ok {
		return len(c.restores) > 0 // a write without an answer
	}
	end := max(p.At, p.End)
	if p.Who != Cloud {
		end = c.arrived(newer, older.At)
	}
	_, lost := c.lost(p.At, end)
	return lost
}

// dropped reports whether a device explains that it shows an older value after a newer one: it has
// taken back a pod's end, which had the newer one, and shows no value older than before that end.
func (c *checker) dropped(newer, older Record) bool {
	return slices.ContainsFunc(c.drops, func(d Record) bool {
		return d.Who == newer.Who && d.object() == newer.object() && d.At >= newer.At && d.At <= older.At &&
			newer.Value <= d.Value && older.Value >= d.Base
	})
}

// takenBack reports whether the device that wrote a status has taken it back since, as a pod's end,
// and the cloud has the value from before it, or a newer one.
func (c *checker) takenBack(status, cloud Record) bool {
	return slices.ContainsFunc(c.drops, func(d Record) bool {
		return d.Who == status.Who && d.object() == status.object() && d.At >= status.At && status.Value <= d.Value && cloud.Value >= d.Base
	})
}

// arrived is when the cloud was first seen to have a node's write, else at the latest. Until then
// the node's store alone had it, and a copy of etcd's data from before lacks it.
func (c *checker) arrived(written Record, latest time.Duration) time.Duration {
	for _, r := range c.history {
		if r.Who == Cloud && (r.Kind == Seen || r.Kind == Going) && r.object() == written.object() && r.Value >= written.Value {
			return min(r.At, latest)
		}
	}
	return latest
}

// wanted looks for pods that a node ended, or received the deletion of, without a request of the
// cloud's clients.
func (c *checker) wanted() (found []Violation) {
	said := map[object]bool{}
	for _, r := range c.history {
		if r.Resource != pods || r.Who == Cloud || r.Kind != Going && r.Kind != Gone || said[r.object()] {
			continue
		}
		if slices.ContainsFunc(c.removes[r.object()], func(x Record) bool { return x.At <= r.At }) {
			continue
		}
		if made := c.puts[r.object()]; len(made) > 0 {
			if _, lost := c.lost(made[0].At, max(made[0].At, made[0].End)); lost {
				continue
			}
		}
		said[r.object()] = true
		found = append(found, Violation{Rule: Wanted, Records: append(slices.Clone(first(c.puts[r.object()])), r),
			Text: fmt.Sprintf("%s lost pod %s, which no client had deleted", r.Who, r.Name)})
	}
	return found
}

func first(all []Record) []Record { return all[:min(1, len(all))] }

// dead looks for objects that are there again after they were gone. A restore may bring them back,
// and a device's objects for a pod go with the pod and come with the next of its name.
func (c *checker) dead() (found []Violation) {
	type view struct {
		who string
		object
	}
	gone := map[view]Record{}
	for _, r := range c.history {
		v := view{r.Who, r.object()}
		switch r.Kind {
		case Gone:
			if r.Resource == pods || r.Who == Cloud || c.runs(r.Who, r.Name, r.At) {
				gone[v] = r
			}
		case Seen, Final:
			g, was := gone[v]
			if !was || slices.ContainsFunc(c.restores, func(x Record) bool { return x.At <= r.At && x.End >= c.removed(g) }) {
				continue
			}
			delete(gone, v)
			found = append(found, Violation{Rule: Dead, Records: []Record{g, r},
				Text: fmt.Sprintf("%s has %s %s again, which was gone", r.Who, r.Resource, r.Name)})
		}
	}
	return found
}

// moment is how far the records of two viewers of one device may be apart for simultaneous changes.
const moment = 2 * time.Second

// runs reports whether a device has a pod of a name, and keeps it for a moment.
func (c *checker) runs(who, name string, at time.Duration) (runs bool) {
	for _, r := range c.history {
		switch {
		case r.At > at+moment:
			return runs
		case r.Who != who || r.Name != name || r.Resource != pods:
		case r.Kind == Going || r.Kind == Gone:
			runs = false
			if r.At > at {
				return false
			}
		case r.Kind == Seen && r.At <= at:
			runs = true
		}
	}
	return runs
}

// removed is when the deletion of a gone object was requested, else when it was seen to be gone.
func (c *checker) removed(gone Record) time.Duration {
	if asked := c.removes[gone.object()]; len(asked) > 0 {
		return min(asked[0].At, gone.At)
	}
	return gone.At
}

// kept compares the stores at the end: the nodes with the cloud, the cloud with the nodes'
// acknowledged writes.
func (c *checker) kept() (found []Violation) {
	cloud := c.finals[Cloud]
	for _, who := range slices.Sorted(maps.Keys(c.finals)) {
		if who == Cloud {
			continue
		}
		has := c.finals[who]
		for _, o := range ordered(cloud) {
			r := cloud[o]
			if r.Node != who {
				continue
			}
			switch mine, ok := has[o]; {
			case !ok:
				found = append(found, Violation{Rule: Kept, Records: append(c.lastPut(o), r),
					Text: fmt.Sprintf("%s lacks %s %s", who, o.resource, o.name)})
			case mine.Value != r.Value:
				found = append(found, Violation{Rule: Kept, Records: append(c.lastPut(o), r, mine),
					Text: fmt.Sprintf("%s has value %d of %s %s, the cloud has %d", who, mine.Value, o.resource, o.name, r.Value)})
			}
		}
		for _, o := range ordered(has) {
			if _, ok := cloud[o]; !ok {
				found = append(found, Violation{Rule: Dead, Records: append(slices.Clone(first(c.removes[o])), has[o]),
					Text: fmt.Sprintf("%s still has %s %s, which the cloud has not", who, o.resource, o.name)})
			}
		}
	}
	for _, o := range ordered(cloud) {
		if o.resource != pods && !reported(o.resource) {
			continue
		}
		if p, ok := lastAcknowledged(c.puts[o]); ok && p.Who != Cloud && cloud[o].Value < p.Value && !c.revived(p) && !c.takenBack(p, cloud[o]) {
			found = append(found, Violation{Rule: Kept, Records: []Record{p, cloud[o]},
				Text: fmt.Sprintf("status %d of %s was acknowledged to %s, the cloud has %d", p.Value, o.name, p.Who, cloud[o].Value)})
		}
	}
	return found
}

// revived reports whether the pod of an acknowledged status has ended on its node since, and an
// older copy may have brought it back: the node's state of it went with it.
func (c *checker) revived(status Record) bool {
	return slices.ContainsFunc(c.history, func(g Record) bool {
		return g.Kind == Gone && g.Who == status.Who && g.object() == status.object() && g.At >= status.At &&
			slices.ContainsFunc(c.restores, func(x Record) bool { return x.End >= c.removed(g) })
	})
}

func (c *checker) lastPut(o object) []Record {
	all := c.puts[o]
	return slices.Clone(all[max(0, len(all)-1):])
}

func lastAcknowledged(puts []Record) (last Record, ok bool) {
	for _, p := range puts {
		if !p.Unknown {
			last, ok = p, true
		}
	}
	return last, ok
}

// exact compares the counts of events in the cloud with those that were reported. Events that a
// restore may have undone are not missed: no store has them any more.
func (c *checker) exact() (found []Violation) {
	cloud := map[string]Record{} // by name: the node does not learn an event's uid in the cloud
	for o, r := range c.finals[Cloud] {
		if o.resource == events {
			cloud[o.name] = r
		}
	}
	byName := map[string][]Record{}
	for o, puts := range c.puts {
		if o.resource == events {
			byName[o.name] = append(byName[o.name], puts...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		puts := byName[name]
		slices.SortFunc(puts, func(a, b Record) int { return cmp.Compare(a.At, b.At) })
		r, there := cloud[name]
		most := puts[len(puts)-1]
		if there && r.Value > most.Value {
			found = append(found, Violation{Rule: Exact, Records: []Record{most, r},
				Text: fmt.Sprintf("event %s was reported %d times, the cloud has %d", name, most.Value, r.Value)})
			continue
		}
		last, acknowledged := lastAcknowledged(puts)
		if !acknowledged || slices.ContainsFunc(c.restores, func(x Record) bool { return last.At <= x.End }) || c.damaged(last) {
			continue
		}
		switch {
		case !there:
			found = append(found, Violation{Rule: Kept, Records: []Record{last},
				Text: fmt.Sprintf("event %s was acknowledged to %s and is missing", name, last.Who)})
		case r.Value < last.Value:
			found = append(found, Violation{Rule: Exact, Records: []Record{last, r},
				Text: fmt.Sprintf("event %s was reported %d times, the cloud has %d", name, last.Value, r.Value)})
		}
	}
	return found
}

// damaged reports whether the store that an acknowledged write was in has been damaged since.
func (c *checker) damaged(write Record) bool {
	return slices.ContainsFunc(c.damages, func(x Record) bool { return x.Who == write.Who && write.At <= x.End })
}

// forgotten reports whether the store that an event was in was damaged before it appeared: a device
// that has lost the record of an event that is under way sends the next one.
func (c *checker) forgotten(write Record, appeared time.Duration) bool {
	return slices.ContainsFunc(c.damages, func(x Record) bool { return x.Who == write.Who && write.At <= x.End && x.At <= appeared })
}

// order compares the order in which the events about an object appeared in the cloud with that in
// which they were reported.
func (c *checker) order() (found []Violation) {
	reported := map[string]Record{} // the first report, by name
	for _, r := range c.history {
		if _, again := reported[r.Name]; r.Kind == Put && r.Resource == events && !again {
			reported[r.Name] = r
		}
	}
	newest := map[string]Record{} // by the object it is about: the last reported of those that appeared
	seen := map[string]bool{}
	for _, r := range c.history {
		p, ok := reported[r.Name]
		if r.Kind != Seen || r.Resource != events || r.Who != Cloud || seen[r.Name] || !ok {
			continue
		}
		seen[r.Name] = true
		if r.Unknown {
			continue // the order of a list has no meaning
		}
		before, any := newest[p.About]
		if _, undone := c.lost(p.At, r.At); any && p.At < before.At && !undone && !c.forgotten(p, r.At) {
			found = append(found, Violation{Rule: Order, Records: []Record{p, before, r},
				Text: fmt.Sprintf("event %s was reported before %s and created after it", p.Name, before.Name)})
			continue
		}
		newest[p.About] = p
	}
	return found
}
