// Package e2e_test runs against one whole trial: two edges, a real control plane, real containers.
package e2e_test

import (
	"os"
	"testing"

	"github.com/skerry-io/skerry/tests/cluster/suite"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

func TestMain(m *testing.M) {
	os.Exit(tests().Main(m))
}

func tests() suite.Suite {
	return suite.Suite{Name: "e2e", Options: options()}
}

// options are the trial's. Lost nodes are noticed quickly, so that tests need not wait for minutes;
// cloudcore has two replicas behind one address.
func options() trial.Options {
	o := trial.DefaultOptions()
	o.Quick, o.Audit = true, true
	o.Clouds = 2
	o.Set = []string{
		"modules.edged.kubelet.syncFrequency=5s",                         // how often volumes follow their ConfigMaps
		"modules.edgeHub.keepalive=3s", "modules.edgeHub.idleTimeout=9s", // how soon a silent link is given up
	}
	o.Set = append(o.Set, drainSettings()...)
	return o
}

// A system is the trial as a test uses it, with the extras of these tests.
type system struct {
	*suite.System
}

func newSystem(t *testing.T) *system {
	t.Helper()
	return &system{tests().Use(t)}
}
