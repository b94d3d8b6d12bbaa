package history

import (
	"context"
	"errors"
	"maps"
	"testing"
)

type memory struct {
	kept map[string][]byte
	full bool
}

func (m *memory) Load() (map[string][]byte, error) { return maps.Clone(m.kept), nil }

func (m *memory) Save(_ context.Context, changes map[string][]byte) error {
	if m.full {
		return errors.New("no space left")
	}
	maps.Copy(m.kept, changes)
	return nil
}

// A changed history makes all reports repeat, once, and is stored when they are in the outbox: not
// by a process that ends before.
func TestClaims_17_EverythingIsReportedToAnotherHistory(t *testing.T) {
	m, repeats, settled := &memory{kept: map[string][]byte{}}, 0, false
	var k *keeper
	start := func() {
		k = &keeper{config: Config{Memory: m, Repeat: func() { repeats++ }, Settled: func() bool { return settled }}, kept: string(m.kept[nameKey])}
	}
	link := func(name string, wantRepeats int, wantKept string, wantAgain bool) {
		t.Helper()
		again, err := k.linked(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if repeats != wantRepeats || string(m.kept[nameKey]) != wantKept || (again > 0) != wantAgain {
			t.Errorf("%d repetitions, %q is kept, again in %s; want %d, %q, %v", repeats, m.kept[nameKey], again, wantRepeats, wantKept, wantAgain)
		}
	}
	start()
	link("", 0, "", false)
	link("one", 0, "one", false)
	link("one", 0, "one", false)
	link("two", 1, "one", true)
	link("two", 1, "one", true) // not settled
	start()                     // the process ends
	link("two", 2, "one", true)
	settled = true
	link("two", 2, "two", false)
	link("", 2, "two", false) // a replica that has not read it yet
	link("two", 2, "two", false)
	link("three", 3, "two", true)
	link("four", 4, "two", true) // restored again
	link("four", 4, "four", false)
}
