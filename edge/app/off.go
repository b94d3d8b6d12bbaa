package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/agents/route"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
	"github.com/skerry-io/skerry/edge/internal/site/podnet"
)

// clearSwitchedOff removes the leftovers of modules that are switched off now. cni is the folder of
// CNI configurations. Routes have an agent for that (newRouteOff), which reports to the cloud.
func clearSwitchedOff(ctx context.Context, cfg *edgeconfig.Config, cni string) {
	log := klog.FromContext(ctx)
	c := cfg.Modules
	if !c.VIP.Enable {
		if err := clearVIPs(ctx, cfg); err != nil {
			log.Error(err, "Failed to clean up virtual IPs of a disabled module, which stay until edgecore starts again")
		}
	}
	if !c.Marks.Enable {
		if err := clearMarks(ctx); err != nil {
			log.Error(err, "Failed to clean up the rules of a disabled module, which stay until edgecore starts again")
		}
	}
	if !c.PodNetwork.Enable {
		if err := errors.Join(removeCNI(cni), clearPodNetwork(ctx)); err != nil {
			log.Error(err, "Failed to clean up the pod network of a disabled module, which stays until edgecore starts again")
		}
	}
}

// ownCNI is in every CNI configuration that edgecore makes, and distinguishes them from another's
// of the same name, as the package's postrm does: the directory of allocated addresses.
const ownCNI = `"/run/skerry/cni"`

// removeCNI removes edgecore's CNI configuration from a folder.
func removeCNI(dir string) error {
	path := filepath.Join(dir, podnet.File)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading a CNI configuration: %w", err)
	}
	if !bytes.Contains(raw, []byte(ownCNI)) {
		return nil
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("removing edgecore's CNI configuration: %w", err)
	}
	return nil
}

func newRouteOff(b *base, core *coreWing) *agent.Module {
	return route.Off(b.node, b.memory(route.Name), core.meta, func(ctx context.Context) error {
		return clearRoutes(ctx, uint8(b.config.Modules.Route.Protocol))
	})
}
