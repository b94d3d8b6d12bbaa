package netroute_test

import (
	"testing"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/dump/dumptest"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
	"github.com/skerry-io/skerry/tests/netns/wire"
)

// Pods start and end while routes and interfaces are listed.
func TestRoutes_interfacesComeAndGo(t *testing.T) {
	h := wire.NewHost(t)
	d := open(t, h)
	dumptest.Churn(t, h.Do)
	for range 100 {
		if err := d.Routes(t.Context(), func() {}, func(netroute.Found) {}); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Links(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
