package app

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/edge/internal/agent"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/config"
	"github.com/skerry-io/skerry/edge/internal/kernel/mangle"
	"github.com/skerry-io/skerry/edge/internal/kernel/netport"
	"github.com/skerry-io/skerry/edge/internal/marks"
	"github.com/skerry-io/skerry/edge/internal/passthrough"
)

func newMarks(c edgeconfig.Marks, node string, client *rest.Config, reporter agent.Reporter) *marks.Agent {
	return marks.New(marks.Config{
		NodeName: node, API: client, Reporter: reporter, Kernel: mangle.New(), Settings: marks.Settings{ClusterStatusPort: uint16(c.ClusterStatusPort)},
	})
}

// clearMarks removes the rules of a module that is switched off, or of an edgecore that is no more.
func clearMarks(ctx context.Context) error { return marks.Clear(ctx, mangle.New()) }

func newPassthrough(node string, client *rest.Config, events func(ctx context.Context) (agent.Recorder, error), memory agent.Memory) *agent.Module {
	return passthrough.New(passthrough.Config{NodeName: node, API: client, Events: events, Ports: netport.Up, Memory: memory})
}
