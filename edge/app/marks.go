package app

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/edge/internal/agent"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/config"
	"github.com/skerry-io/skerry/edge/internal/kernel/mangle"
	"github.com/skerry-io/skerry/edge/internal/marks"
)

func newMarks(c edgeconfig.Marks, node string, client *rest.Config, reporter agent.Reporter) *marks.Agent {
	return marks.New(marks.Config{
		NodeName: node, API: client, Reporter: reporter, Kernel: mangle.New(), Settings: marks.Settings{ClusterStatusPort: uint16(c.ClusterStatusPort)},
	})
}

// clearMarks removes the rules of a module that is switched off, or of an edgecore that is no more.
func clearMarks(ctx context.Context) error { return marks.Clear(ctx, mangle.New()) }
