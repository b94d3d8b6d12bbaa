package app

import (
	"net/netip"

	"github.com/skerry-io/skerry/edge/internal/agent"
	"github.com/skerry-io/skerry/edge/internal/api"
	"github.com/skerry-io/skerry/edge/internal/apiredirect"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/config"
	"github.com/skerry-io/skerry/edge/internal/endpoints"
	"github.com/skerry-io/skerry/edge/internal/kernel/redirect"
	"github.com/skerry-io/skerry/edge/internal/object"
)

// newCorrection makes what corrects EndpointSlices where something on the device reads them; nil where nothing does.
func (a *App) newCorrection() object.Corrector {
	c := a.config.Modules
	if !c.EdgeAPI.Enable || !c.Services.Enable && !c.Names.Enable {
		return nil
	}
	config := endpoints.CorrectionConfig{NodeName: a.node}
	config.API, _ = netip.ParseAddrPort(podsListen(c.EdgeAPI)) // the configuration's rules have refused what is none
	if c.Names.Enable {
		config.DNS, _ = netip.ParseAddrPort(c.Names.Listen)
	}
	a.correction = endpoints.NewCorrection(config)
	return a.correction
}

func (a *App) newEndpoints() *endpoints.Agent {
	e := endpoints.New(endpoints.Config{
		NodeName: a.node, API: a.api.ClientConfig(api.Identity{}), Correction: a.correction, View: a.meta,
		Memory: agent.NewMemory(a.store, string(endpoints.Name)), BootID: bootID(),
	})
	a.agent(e.Module)
	return e
}

// podsListen is where the edge API serves pods; "" where it does not.
func podsListen(c edgeconfig.EdgeAPI) string {
	if !c.Pods {
		return ""
	}
	return c.PodsListen
}

// newAPIRedirect makes the agent that leads pods to the edge API, or removes what led them there.
func (a *App) newAPIRedirect() *agent.Module {
	at, _ := netip.ParseAddrPort(podsListen(a.config.Modules.EdgeAPI)) // the configuration's rules have refused what is none
	return a.agent(apiredirect.New(apiredirect.Config{API: a.api.ClientConfig(api.Identity{}), Redirect: redirect.New(), Listen: at, Serve: a.api.ServePods}))
}
