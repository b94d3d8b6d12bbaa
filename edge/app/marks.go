package app

import (
	"context"
	"net/netip"

	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/mangle"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
	"github.com/skerry-io/skerry/edge/internal/optional/marks"
	"github.com/skerry-io/skerry/edge/internal/optional/passthrough"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
)

func newMarks(c edgeconfig.Marks, node string, client *rest.Config, reporter agent.Reporter) *marks.Agent {
	return marks.New(marks.Config{
		NodeName: node, API: client, Reporter: reporter, Kernel: mangle.New(), Settings: marks.Settings{ClusterStatusPort: uint16(c.ClusterStatusPort)},
	})
}

// clearMarks removes the rules of a module that is switched off, or of an edgecore that is no more.
func clearMarks(ctx context.Context) error { return marks.Clear(ctx, mangle.New()) }

func newPassthrough(b *base, core *coreWing) *agent.Module {
	return passthrough.New(passthrough.Config{
		NodeName: b.node, API: core.client(), Events: core.recorder(passthrough.Name), Memory: b.memory(passthrough.Name),
		Ports: netif.Up, Allowed: b.config.Modules.Passthrough.Ports,
		Guard: func(port string, nodes []netip.Addr, way netip.Addr) (string, error) {
			ways := []netip.Addr{}
			for _, server := range b.servers() {
				if ip, err := netip.ParseAddr(server); err == nil {
					ways = append(ways, ip.Unmap())
				}
			}
			if way.IsValid() {
				ways = append(ways, way)
			}
			return netif.Depends(port, ways, nodes)
		},
	})
}
