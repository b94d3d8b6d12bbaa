package app

import (
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/version"
	"github.com/skerry-io/skerry/edge/internal/agents/history"
	"github.com/skerry-io/skerry/edge/internal/core/edgehub"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netwatch"
	"github.com/skerry-io/skerry/edge/internal/optional/console"
	"github.com/skerry-io/skerry/edge/internal/setup/tunnel"
)

// linkWing is the link to the cloud, with the streams and messages that it carries.
type linkWing struct {
	hub      *edgehub.Hub      // nil where modules.edgeHub is switched off
	consoles *console.Consoles // nil where modules.console is switched off

	linking    []beehive.Entry
	collectors []prometheus.Collector
}

// linkConfig is the process for the link.
type linkConfig struct {
	protocols protocol.Window // zero: this release's
	rescue    *rescue
	streams   tunnel.Config
}

// newLink makes the hub and completes u.
func newLink(b *base, core *coreWing, r *reporters, site *siteWing, optional *optionalWing, u *uplink, process linkConfig) (*linkWing, error) {
	w := &linkWing{}
	if !b.config.Modules.EdgeHub.Enable {
		return w, nil
	}
	u.tunnel = tunnel.New(process.streams)
	parts := map[message.Kind]edgehub.Part{topic.KindStream: u.tunnel}
	if site.holder != nil {
		parts[topic.KindSite] = site.holder
	}
	if optional.nodeMetrics != nil {
		parts[topic.KindMetrics] = optional.nodeMetrics
	}
	var err error
	if w.hub, err = newHub(b, core.meta, parts, process); err != nil {
		return nil, err
	}
	u.hub = w.hub
	w.collectors = append(w.collectors, w.hub, u.tunnel)
	if c := b.config.Modules.Console; c.Enable {
		w.consoles = console.New(console.Config{Open: u.tunnel.Open, FirstPort: c.FirstPort, Limit: c.Limit.Duration})
	}
	told := history.New(history.Config{
		NodeName: b.node, Memory: b.memory(history.Name), Repeat: r.repeat, Settled: r.settled,
	})
	w.linking = []beehive.Entry{restarted(&identityModule{b, core.client()}, linkstate.Group), restarted(netwatch.New(nil)), restarted(told, linkstate.Agents), restarted(w.hub)}
	return w, nil
}

func newHub(b *base, meta *metamanager.Manager, parts map[message.Kind]edgehub.Part, process linkConfig) (*edgehub.Hub, error) {
	c := b.config.Modules.EdgeHub
	servers := b.servers()
	if len(servers) == 0 {
		return nil, fmt.Errorf("the cluster's server %q has no host; set modules.edgeHub.servers", b.identity.Cluster().Server)
	}
	addresses := make([]string, len(servers))
	for i, s := range servers {
		addresses[i] = net.JoinHostPort(s, strconv.Itoa(c.WebSocket.Port))
	}
	return edgehub.New(edgehub.Config{
		Protocols: process.protocols, Rescued: process.rescue.opened,
		Servers: addresses, Dialer: b.dialer, Epochs: b.store, Alive: meta.KubeletAlive, Version: version.Skerry(), BootID: bootID(), Machine: machineID(b.config),
		Keepalive: c.Keepalive.Duration, BackoffMin: c.BackoffMin.Duration, BackoffMax: c.BackoffMax.Duration,
		Trust: b.identity,
		Report: func() edgehub.Report { // the state of the device that its heartbeats carry
			r := edgehub.Report{CertificateEnd: b.identity.Status().NotAfter}
			r.Backlog, r.BacklogAge = meta.Backlog(time.Now())
			return r
		},
		Parts: parts,
	})
}
