package app

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/api"
	"github.com/skerry-io/skerry/edge/internal/hub"
	"github.com/skerry-io/skerry/edge/internal/kernel/netroute"
	"github.com/skerry-io/skerry/edge/internal/route"
)

// closeTimeout is for the last events of a module that ends.
const closeTimeout = 2 * time.Second

func (a *App) newRoutes() *route.Agent {
	c := a.config.Modules
	config := route.Config{
		NodeName: a.node, BootID: bootID(), Open: a.openRoutes, State: route.InStore(a.store), Reporter: a.meta, API: a.api.ClientConfig(api.Identity{}),
		Protected: c.Route.Protected(),
	}
	if c.EdgeHub.Enable {
		config.Hub = hub.Name
	}
	for _, server := range a.servers() {
		if ip, err := netip.ParseAddr(server); err == nil { // a name's addresses are learnt from the link
			config.Cloud = append(config.Cloud, ip.Unmap())
		}
	}
	return route.New(config)
}

func (a *App) openRoutes(ctx context.Context) (route.Tools, error) {
	kernel, err := netroute.Open(netroute.Config{Protocol: uint8(a.config.Modules.Route.Protocol)})
	if err != nil {
		return route.Tools{}, err
	}
	events, err := a.api.NewRecorder(ctx, string(route.Name))
	if err != nil {
		kernel.Close()
		return route.Tools{}, fmt.Errorf("making the recorder: %w", err)
	}
	return route.Tools{Kernel: kernel, Events: events, Close: func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if err := events.Close(ctx); err != nil {
			klog.FromContext(ctx).V(2).Info("The last events of routes were not written", "err", err)
		}
		kernel.Close()
	}}, nil
}
