package app

import (
	"net/netip"

	"github.com/skerry-io/skerry/edge/internal/api"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/config"
	"github.com/skerry-io/skerry/edge/internal/detour"
	"github.com/skerry-io/skerry/edge/internal/kernel/divert"
)

// podsListen is where the edge API serves pods; "" where it does not.
func podsListen(c edgeconfig.EdgeAPI) string {
	if !c.Pods {
		return ""
	}
	return c.PodsListen
}

// newDetour makes the module that leads pods to the edge API, or takes away what led them there.
func (a *App) newDetour() *detour.Agent {
	at, _ := netip.ParseAddrPort(podsListen(a.config.Modules.EdgeAPI)) // the configuration's rules have refused what is none
	return detour.New(detour.Config{API: a.api.ClientConfig(api.Identity{}), Divert: divert.New(), Listen: at, Serve: a.api.ServePods})
}
