package app

import (
	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
	"github.com/skerry-io/skerry/edge/internal/pods/shutdown"
)

func (a *App) shutdownParts() ([]beehive.Entry, error) {
	c := shutdown.Config{NodeName: a.node, API: a.api.ClientConfig(edgeapi.Identity{}), Announced: a.flight.Shutdown}
	if a.vips != nil {
		c.Leave, c.Stay = a.vips.Leave, a.vips.Stay
	}
	if a.edged != nil {
		for _, p := range a.edged.Periods() {
			c.Periods = append(c.Periods, shutdown.Period(p))
		}
		c.Kubelet, c.Runtime = a.edged, a.edged.Runtime()
	}
	m, err := shutdown.New(c)
	if err != nil {
		return nil, err
	}
	// A shutdown that was cancelled ends edgecore, since the kubelet was stopped for it.
	return []beehive.Entry{{Module: m, Restart: beehive.Never()}}, nil
}
