package app

import (
	"context"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/kernel/logind"
	"github.com/skerry-io/skerry/edge/internal/vip"
)

// shutdownModule hands the device's virtual IPs over before it shuts down, by whomever that was
// asked for. The kubelet ends the pods by an inhibitor lock of its own.
type shutdownModule struct{ vips *vip.Agent }

func (*shutdownModule) Name() message.Name { return "shutdown" }

// Run waits for shutdowns until ctx ends.
func (m *shutdownModule) Run(ctx context.Context, port *beehive.Port) error {
	port.Ready()
	return logind.Run(ctx, logind.Config{Why: "hands virtual IPs over", Prepare: m.vips.Leave, Resume: m.vips.Stay})
}
