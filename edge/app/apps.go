package app

import (
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/edge/internal/agent"
	edgeapp "github.com/skerry-io/skerry/edge/internal/app"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/config"
	"github.com/skerry-io/skerry/edge/internal/meta"
	"github.com/skerry-io/skerry/edge/internal/store"
)

// newApps makes the agent of applications.
func newApps(c edgeconfig.Apps, node string, client *rest.Config, m *meta.Manager, s *store.Store) *edgeapp.Agent {
	return edgeapp.New(edgeapp.Config{
		NodeName: node, API: client, Reporter: m, Memory: agent.NewMemory(s, string(edgeapp.Name)), Alive: m.KubeletAlive,
		Rules: edgeapp.Rules{HaltingAfter: c.HaltingAfter.Duration, SilentAfter: c.SilentAfter.Duration},
	})
}
