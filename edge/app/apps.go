package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"

	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/common/claim"
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
		Fetcher: content.New(filepath.Join(dataDir, contentDir), images, notThisDevice),
	})
}

// notThisDevice refuses the addresses of this device, and those that have their meaning on each
// host alone: who may write an EdgeApp in one namespace does not reach servers that listen for the
// device itself.
func notThisDevice(a netip.Addr) error {
	if g, touched := claim.Standard().TouchedBy(a); touched {
		return fmt.Errorf("%s is refused: it is in %s", a, g.Why)
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return fmt.Errorf("listing this device's addresses: %w", err)
	}
	for _, o := range own {
		if p, err := netip.ParsePrefix(o.String()); err == nil && p.Addr().Unmap() == a.WithZone("").Unmap() {
			return fmt.Errorf("%s is refused: it is an address of this device", a)
		}
	}
	return nil
}
