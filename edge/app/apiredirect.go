package app

import (
	"net/netip"

	"github.com/skerry-io/skerry/edge/internal/agent"
	"github.com/skerry-io/skerry/edge/internal/api"
	"github.com/skerry-io/skerry/edge/internal/apiredirect"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/config"
	"github.com/skerry-io/skerry/edge/internal/kernel/redirect"
)

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
