package app

import (
	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/edge/internal/pods/shutdown"
)

// newShutdown makes the module that stops the kubelet and has virtual IPs handed over.
func newShutdown(b *base, core *coreWing, agents *agentsWing, k *kubelet) ([]beehive.Entry, error) {
	if k.module == nil && agents.vips == nil {
		return nil, nil
	}
	c := shutdown.Config{NodeName: b.node, API: core.client(), Announced: agents.flight.Shutdown}
	if agents.vips != nil {
		c.Leave, c.Stay = agents.vips.Leave, agents.vips.Stay
	}
	if k.module != nil {
		for _, p := range k.module.Periods() {
			c.Periods = append(c.Periods, shutdown.Period(p))
		}
		c.Kubelet, c.Runtime = k.module, k.module.Runtime()
	}
	m, err := shutdown.New(c)
	if err != nil {
		return nil, err
	}
	// A shutdown that was cancelled ends edgecore, since the kubelet was stopped for it.
	return []beehive.Entry{{Module: m, Restart: beehive.Never()}}, nil
}
