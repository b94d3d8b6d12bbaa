package app_test

import (
	"slices"
	"testing"

	"github.com/skerry-io/skerry/edge/app"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
)

// Modules start in an order that a device without a link needs, whichever of them are enabled.
func TestWiring(t *testing.T) {
	everything := edgeconfig.Default()
	m := &everything.Modules
	m.Site.Enable, m.Services.Enable, m.Names.Enable = edgeconfig.On, edgeconfig.On, edgeconfig.On
	m.Apps.Enable, m.ClusterStats.Enable, m.AppLogs.Enable, m.NodeMetrics.Enable = true, true, true, true
	m.Marks.Enable, m.Passthrough.Enable, m.Console.Enable = true, true, true
	for name, tc := range map[string]struct {
		config *edgeconfig.Config
		order  [][]string
	}{
		"default": {edgeconfig.Default(), [][]string{
			{"health", "metamanager", "flightrecorder", "edgeapi", "probation", "podnet", "route", "edgehub", "services", "edged", "shutdown"},
			{"probation", "vip", "edged"}, {"drain", "edgehub"}, {"edgehub", "switch", "services"},
		}},
		"everything": {everything, [][]string{
			{"edgeapi", "contact", "route", "apps", "edgehub", "passthrough", "marks", "serviceview", "endpoints", "names", "services", "edged", "shutdown"},
			{"clusterstats", "applogs", "nodemetrics", "edgehub"},
		}},
	} {
		wiring, err := app.Wiring(tc.config)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		names := wiring.Names()
		for _, order := range tc.order {
			last := -1
			for _, n := range order {
				at := slices.Index(names, n)
				if at <= last {
					t.Errorf("%s: %s is at %d, want it above %d: %v", name, n, at, last, names)
				}
				last = at
			}
		}
		if n := names[len(names)-1]; n != "shutdown" {
			t.Errorf("%s: the last module is %s", name, n)
		}
	}
}
