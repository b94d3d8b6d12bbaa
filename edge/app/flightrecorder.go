package app

import (
	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/common/version"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
	"github.com/skerry-io/skerry/edge/internal/agents/flightrecorder"
	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
)

// FlightRecorder is the directory of the flight recorder.
func FlightRecorder(cfg *edgeconfig.Config) string { return flightrecorder.DirIn(cfg.DataDir) }

func (a *App) flightRecorderParts() ([]beehive.Entry, error) {
	a.flight = flightrecorder.New(flightrecorder.Config{
		NodeName: a.node, Dir: FlightRecorder(a.config), Boot: bootID(), Version: version.Skerry(),
		API: a.api.ClientConfig(edgeapi.Identity{}), Drain: string(drain.Name), Pods: a.config.Modules.Edged.Enable,
	})
	return []beehive.Entry{restarted(a.flight, linkstate.Group)}, nil
}
