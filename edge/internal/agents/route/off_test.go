package route_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/beehivetest"
	"github.com/skerry-io/skerry/edge/internal/agents/route"
	"github.com/skerry-io/skerry/edge/internal/core/agent/agenttest"
)

// Switched off, the module removes its routes first, then their reports, once; both are retried
// until they succeed.
func TestOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outbox := &agenttest.Outbox{}
		state := &kept{all: map[string][]byte{
			".":      []byte(`{"nodeUID":"n"}`),
			"office": []byte(`{"uid":"u1","entry":{"name":"device","reason":"Applied"},"reported":true}`),
			"plant":  []byte(`{"uid":"u2","entry":{"name":"device","reason":"Refused"}}`),
			"broken": []byte(`{`),
		}}
		left := func() []string {
			all, err := state.Load()
			if err != nil {
				t.Fatal(err)
			}
			maps.DeleteFunc(all, func(_ string, raw []byte) bool { return raw == nil })
			return slices.Sorted(maps.Keys(all))
		}
		said := func() []string {
			var all []string
			for _, r := range outbox.Reports("") {
				all = append(all, r.Name+" "+string(r.UID)+" "+r.Body)
			}
			slices.Sort(all)
			return all
		}
		cleared := make(chan error) // answers of the kernel
		beehivetest.Run(t, nil, beehive.Entry{Module: route.Off(nodeName, state, outbox, func(context.Context) error { return <-cleared })})
		cleared <- errors.New("the kernel is busy")
		synctest.Wait()
		if got := said(); got != nil {
			t.Errorf("while the routes are there: %q", got)
		}
		outbox.Refuse(errors.New("the disk is full"))
		cleared <- nil
		synctest.Wait()
		if diff := cmp.Diff([]string{".", "office", "plant"}, left()); diff != "" {
			t.Errorf("while nothing can be reported (-want +got):\n%s", diff)
		}
		outbox.Refuse(nil)
		cleared <- nil
		synctest.Wait()
		if diff := cmp.Diff([]string{"office u1 null", "plant u2 null"}, said()); diff != "" {
			t.Errorf("reports (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"."}, left()); diff != "" {
			t.Errorf("what is kept (-want +got):\n%s", diff)
		}
		time.Sleep(time.Hour)
		if got := said(); len(got) != 2 {
			t.Errorf("it is said again: %q", got)
		}
	})
}
