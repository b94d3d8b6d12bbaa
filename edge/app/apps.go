package app

import (
	"context"
	"errors"
	"path/filepath"

	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	edgeapp "github.com/skerry-io/skerry/edge/internal/optional/app"
	"github.com/skerry-io/skerry/edge/internal/optional/content"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
)

// contentDir, in the data directory, has the disk images of applications.
const contentDir = "content"

// newApps makes the agent of applications. runtime is the endpoint of the container
// runtime's images, once that is known.
func newApps(c edgeconfig.Apps, node, dataDir string, client *rest.Config, m *metamanager.Manager, s *store.Store, runtime func() string) *edgeapp.Agent {
	images := func(ctx context.Context) (content.Images, error) {
		at := runtime()
		if at == "" {
			return nil, errors.New("this device has no kubelet of edgecore's")
		}
		return content.Runtime(ctx, at)
	}
	return edgeapp.New(edgeapp.Config{
		NodeName: node, API: client, Reporter: m, Memory: agent.NewMemory(s, string(edgeapp.Name)), Alive: m.KubeletAlive,
		Rules:   edgeapp.Rules{HaltingAfter: c.HaltingAfter.Duration, SilentAfter: c.SilentAfter.Duration},
		Fetcher: content.New(filepath.Join(dataDir, contentDir), images),
	})
}
