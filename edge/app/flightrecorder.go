package app

import (
	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/common/version"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
	"github.com/skerry-io/skerry/edge/internal/agents/flightrecorder"
	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
)

func (a *App) flightRecorderParts() ([]beehive.Entry, error) {
	a.flight = flightrecorder.New(flightrecorder.Config{
		NodeName: a.node, Dir: FlightRecorder(a.config), Boot: bootID(), Version: version.Skerry(),
		API: a.api.ClientConfig(edgeapi.Identity{}), Drain: string(drain.Name), Pods: a.config.Modules.Edged.Enable,
	})
	return []beehive.Entry{restarted(a.flight, linkstate.Group)}, nil
}
