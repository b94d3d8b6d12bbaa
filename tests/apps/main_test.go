// Package apps_test runs applications (EdgeApps) on one whole trial of three edges, and takes
// their devices away.
package apps_test

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
	return suite.Suite{Name: "apps", Options: options()}
}

// options are three edges. Lost nodes are noticed quickly, so that tests need not wait for minutes.
func options() trial.Options {
	o := trial.DefaultOptions()
	o.Edges, o.Quick, o.Sample = 3, true, false
	o.Logs = "http://" + receiverAddress + "/v1/logs"
	o.Set = []string{
		"modules.apps.enable=true", "modules.apps.silentAfter=15s",
		"modules.appLogs.enable=true", "modules.appLogs.interval=1s",
		// Files of logs that are full after some 200 lines: three of a container are kept.
		"modules.edged.kubelet.containerLogMaxSize=32Ki", "modules.edged.kubelet.containerLogMaxFiles=3", "modules.edged.kubelet.containerLogMonitorInterval=3s",
		"modules.clusterStats.enable=true", "modules.clusterStats.leaseDuration=12s", "modules.clusterStats.renewDeadline=8s", "modules.clusterStats.retryPeriod=2s",
		"modules.edgeHub.keepalive=3s", "modules.edgeHub.idleTimeout=9s", // how soon a silent link is given up
	}
	return o
}
