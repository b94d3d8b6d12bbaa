package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	write bool
	value int64
}

// anything is the initial state of a register: unknown.
const anything = math.MinInt64

// model is a register: a read returns the last write (M. Herlihy, J. Wing, "Linearizability: a
// correctness condition for concurrent objects", 1990).
func model() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return int64(anything) },
		Step: func(state, input, output any) (bool, any) {
			in := input.(operation)
			if in.write {
				return true, in.value
			}
			have, read := state.(int64), output.(int64)
			return have == anything || have == read, read
		},
	}
}

// linearized bounds the search for one object.
const linearized = 10 * time.Second

// register checks the objects that nodes write through their own devices' API, and read there.
// Values of a restored cluster, or of a damaged store, are another history: an object is checked up
// to the first of those since it was made.
func register(h History) (found []Violation) {
	undone, damaged := h.each(Restore), h.each(Damage)
	operations, made := map[object][]Record{}, map[object]time.Duration{}
	for _, r := range h {
		if r.Resource != pods || r.Kind != Get && r.Kind != Put {
			continue
		}
		if _, again := made[r.object()]; !again {
			made[r.object()] = r.At
		}
		if r.Who != Cloud {
			operations[r.object()] = append(operations[r.object()], r)
		}
	}
	for _, o := range ordered(operations) {
		until := time.Duration(math.MaxInt64)
		for _, x := range slices.Concat(undone, damaged) {
			if x.End >= made[o] && (x.Kind == Restore || x.Who == operations[o][0].Who) {
				until = min(until, x.At)
			}
		}
		whole := slices.DeleteFunc(operations[o], func(r Record) bool { return r.End >= until })
		if records := shortest(whole); records != nil {
			found = append(found, Violation{Rule: Register, Records: records,
				Text: fmt.Sprintf("reads of the status of %s on %s don't fit the writes", o.name, records[0].Who)})
		}
	}
	return found
}

// shortest returns nil where the records are linearizable, else the fewest that are not, as far as
// leaving out one read or unread write after the other finds them.
func shortest(records []Record) []Record {
	if linearizable(records) {
		return nil
	}
	// The requests answered by a time are a history too, and once one is not linearizable no later
	// one is.
	ends := make([]time.Duration, 0, len(records))
	for _, r := range records {
		ends = append(ends, cmp.Or(r.End, r.At))
	}
	slices.Sort(ends)
	n := sort.Search(len(ends), func(i int) bool { return !linearizable(answered(records, ends[i])) })
	bad := answered(records, ends[min(n, len(ends)-1)])
	for i := len(bad) - 1; i >= 0; i-- {
		r := bad[i]
		read := slices.ContainsFunc(bad, func(x Record) bool { return x.Kind == Get && x.Value == r.Value })
		if r.Kind == Put && read {
			continue
		}
		if without := slices.Delete(slices.Clone(bad), i, i+1); !linearizable(without) {
			bad = without
		}
	}
	return bad
}

// answered is a history as of a time: a write under way then may have been done.
func answered(records []Record, at time.Duration) (then []Record) {
	for _, r := range records {
		switch {
		case cmp.Or(r.End, r.At) <= at:
			then = append(then, r)
		case r.Kind == Put && r.At <= at:
			r.Unknown = true
			then = append(then, r)
		}
	}
	return then
}

func linearizable(records []Record) bool {
	var all []porcupine.Operation
	for i, r := range records {
		end := cmp.Or(r.End, r.At)
		if r.Unknown {
			if r.Kind == Get {
				continue
			}
			end = math.MaxInt64
		}
		all = append(all, porcupine.Operation{
			ClientId: i, Call: int64(r.At), Return: int64(end), Input: operation{r.Kind == Put, r.Value}, Output: r.Value,
		})
	}
	result := porcupine.CheckOperationsTimeout(model(), all, linearized)
	return result != porcupine.Illegal
}
