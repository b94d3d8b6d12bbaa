package app

import (
	"github.com/skerry-io/skerry/common/version"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
	"github.com/skerry-io/skerry/edge/internal/agents/flightrecorder"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
)

// FlightRecorder is the directory of the flight recorder.
func FlightRecorder(cfg *edgeconfig.Config) string { return flightrecorder.DirIn(cfg.DataDir) }

func newFlightRecorder(b *base, core *coreWing) *flightrecorder.Module {
	return flightrecorder.New(flightrecorder.Config{
		NodeName: b.node, Dir: FlightRecorder(b.config), Boot: bootID(), Version: version.Skerry(),
		API: core.client(), Drain: string(drain.Name), Pods: b.config.Modules.Edged.Enable,
	})
}
