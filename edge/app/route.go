package app

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/edge/internal/agents/probation"
	"github.com/skerry-io/skerry/edge/internal/agents/route"
	"github.com/skerry-io/skerry/edge/internal/core/edgehub"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
)

func newRoutes(b *base, core *coreWing, tested *probation.Probation) *route.Agent {
	c := b.config.Modules
	config := route.Config{
		NodeName: b.node, BootID: bootID(), Open: b.openRoutes, State: b.memory(route.Name),
		Reporter: core.meta, API: core.client(), Events: core.recorder(route.Name),
		Protected: c.Route.Protected(), Probes: b.probes(), Probation: tested,
	}
	if c.EdgeHub.Enable {
		config.Hub = edgehub.Name
	}
	var names []string
	for _, server := range b.servers() {
		if ip, err := netip.ParseAddr(server); err == nil {
			config.Cloud = append(config.Cloud, ip.Unmap())
		} else {
			names = append(names, server)
		}
	}
	if len(names) > 0 {
		config.Resolve = func(ctx context.Context) []netip.Addr { return lookUp(ctx, names) }
	}
	config.Surroundings = func() route.Surroundings {
		s := route.Surroundings{Pods: netif.PodRanges(netif.CNIConfigs)}
		if len(names) > 0 {
			s.Resolvers = netif.Resolvers(netif.ResolverFiles()...)
		}
		return s
	}
	return route.New(config)
}

func (b *base) openRoutes(context.Context) (route.Kernel, func(), error) {
	kernel, err := netroute.Open(netroute.Config{Protocol: uint8(b.config.Modules.Route.Protocol)})
	if err != nil {
		return nil, nil, err
	}
	return kernel, kernel.Close, nil
}

func lookUp(ctx context.Context, names []string) (all []netip.Addr) {
	for _, name := range names {
		found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		if err == nil { // otherwise the previous addresses stay
			all = append(all, found...)
		}
	}
	return all
}

// askCloud asks whether a new connection reaches any of cloudcore's servers; nil without a hub.
func (b *base) askCloud() func(ctx context.Context) error {
	if !b.config.Modules.EdgeHub.Enable {
		return nil
	}
	return func(ctx context.Context) (err error) {
		for _, server := range b.servers() {
			if err = dialOnce(ctx, b.dialer, net.JoinHostPort(server, fmt.Sprint(b.config.Modules.EdgeHub.WebSocket.Port))); err == nil {
				return nil
			}
		}
		return err
	}
}

// probes are the ways to the cloud that a route must not cut: the names of cloudcore, the link, and
// where a device joins. Each makes a new connection, as after the next loss of the link.
func (b *base) probes() []route.Probe {
	if !b.config.Modules.EdgeHub.Enable {
		return nil
	}
	var all []route.Probe
	for _, server := range b.servers() {
		if _, err := netip.ParseAddr(server); err != nil {
			all = append(all, route.Probe{What: "the name of cloudcore " + server, Look: func(ctx context.Context) error {
				_, err := net.DefaultResolver.LookupNetIP(ctx, "ip", server)
				return err
			}})
		}
		all = append(all, route.Probe{What: "the link's server " + server, Look: func(ctx context.Context) error {
			return dialOnce(ctx, b.dialer, net.JoinHostPort(server, fmt.Sprint(b.config.Modules.EdgeHub.WebSocket.Port)))
		}})
	}
	if join := b.identity.Cluster().Server; join != "" {
		all = append(all, route.Probe{What: "the join server " + join, Look: func(ctx context.Context) error {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", join)
			if err != nil {
				return err
			}
			return conn.Close()
		}})
	}
	return all
}

// dialOnce opens a link and closes it before the hello: no session begins, and the open one stays.
func dialOnce(ctx context.Context, d link.Dialer, address string) error {
	conn, err := d.Dial(ctx, address)
	if err != nil {
		return err
	}
	_ = conn.Close(link.CloseShutdown, "a check of the way") // the answer has come
	return nil
}
