// Package site_test runs against a trial whose devices serve Services and names themselves: two
// edges of one LAN, a real control plane, real containers, real kernels.
package site_test

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
	return suite.Suite{Name: "site", Options: options()}
}

func options() trial.Options {
	o := trial.DefaultOptions()
	o.Quick, o.Sample = true, false
	o.Set = []string{
		"modules.edgeHub.keepalive=3s", "modules.edgeHub.idleTimeout=9s",
	}
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
