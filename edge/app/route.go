package app

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/edge/internal/agents/route"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
	"github.com/skerry-io/skerry/edge/internal/core/edgehub"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
)

// agent adds an agent to those whose state `edgecore status` shows.
func (a *App) agent(m *agent.Module) *agent.Module {
	a.agents = append(a.agents, m)
	return m
}

// StandIn makes a program that replaces agents of this device repeat their reports when edgecore's
// own do, until settled returns true. It is called before Run. edgecore itself does not use it.
func (a *App) StandIn(repeat func(), settled func() bool) { a.standIn = standIn{repeat, settled} }

// repeatReports makes the agents repeat all reports on this node.
func (a *App) repeatReports() {
	if a.standIn.repeat != nil {
		a.standIn.repeat()
	}
	for _, m := range a.agents {
		m.Repeat()
	}
}

// reportsSettled reports whether all reports of the agents are in the outbox.
func (a *App) reportsSettled() bool {
	if a.standIn.settled != nil && !a.standIn.settled() {
		return false
	}
	return !slices.ContainsFunc(a.agents, func(m *agent.Module) bool {
		s := m.State()
		return s.Syncs == 0 && s.Waiting == "" || s.Unreported > 0
	})
}

// recorder opens the recorder of events of an agent.
func (a *App) recorder(name string) func(ctx context.Context) (agent.Recorder, error) {
	return func(ctx context.Context) (agent.Recorder, error) { return a.api.StartRecorder(ctx, name) }
}

func (a *App) newRoutes() *route.Agent {
	c := a.config.Modules
	config := route.Config{
		NodeName: a.node, BootID: bootID(), Open: a.openRoutes, State: agent.NewMemory(a.store, string(route.Name)),
		Reporter: a.meta, API: a.api.ClientConfig(edgeapi.Identity{}), Events: a.recorder(string(route.Name)),
		Protected: c.Route.Protected(), Probes: a.probes(), Probation: a.probation,
	}
	if c.EdgeHub.Enable {
		config.Hub = edgehub.Name
	}
	var names []string
	for _, server := range a.servers() {
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
	routes := route.New(config)
	a.agent(routes.Module)
	return routes
}

func (a *App) openRoutes(context.Context) (route.Kernel, func(), error) {
	kernel, err := netroute.Open(netroute.Config{Protocol: uint8(a.config.Modules.Route.Protocol)})
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
func (a *App) askCloud() func(ctx context.Context) error {
	if !a.config.Modules.EdgeHub.Enable {
		return nil
	}
	return func(ctx context.Context) (err error) {
		for _, server := range a.servers() {
			if err = dialOnce(ctx, a.dialer, net.JoinHostPort(server, fmt.Sprint(a.config.Modules.EdgeHub.WebSocket.Port))); err == nil {
				return nil
			}
		}
		return err
	}
}

// probes are the ways to the cloud that a route must not cut: the names of cloudcore, the link, and
// where a device joins. Each makes a new connection, as after the next loss of the link.
func (a *App) probes() []route.Probe {
	if !a.config.Modules.EdgeHub.Enable {
		return nil
	}
	var all []route.Probe
	for _, server := range a.servers() {
		if _, err := netip.ParseAddr(server); err != nil {
			all = append(all, route.Probe{What: "the name of cloudcore " + server, Look: func(ctx context.Context) error {
				_, err := net.DefaultResolver.LookupNetIP(ctx, "ip", server)
				return err
			}})
		}
		all = append(all, route.Probe{What: "the link's server " + server, Look: func(ctx context.Context) error {
			return dialOnce(ctx, a.dialer, net.JoinHostPort(server, fmt.Sprint(a.config.Modules.EdgeHub.WebSocket.Port)))
		}})
	}
	if join := a.identity.Cluster().Server; join != "" {
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
