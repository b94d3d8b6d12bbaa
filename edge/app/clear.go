package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/kubeproxy"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/masquerade"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/redirect"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/keepalived"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/wireguard"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
	"github.com/skerry-io/skerry/edge/internal/site/podnet"
	"github.com/skerry-io/skerry/edge/internal/site/services"
)

// ClearKernel removes the kernel state of an edgecore of this configuration, which stays when it
// ends, so that pods' traffic does not stop for a restart: routes, rules of virtual IPs and of
// Services, the redirection of pods to the edge API, the address of names, connection marks, routes
// and tunnels to other devices' pods and their masquerading, and a keepalived that a killed
// edgecore has left. A failed removal does not prevent the others; the error names all of them.
func (l *Lock) ClearKernel(ctx context.Context) error {
	cfg := l.config
	return errors.Join(
		clearVIPs(ctx, cfg),
		l.clearServices(ctx),
		redirect.New().Apply(nil),
		netif.KeepLoopback(), // no addresses
		clearMarks(ctx),
		clearRoutes(ctx, uint8(cfg.Modules.Route.Protocol)),
		clearPodNetwork(ctx),
	)
}

// clearVIPs ends a keepalived that an earlier edgecore has left, and removes the rules of virtual
// IPs. It must not run together with a module that serves them.
func clearVIPs(ctx context.Context, cfg *edgeconfig.Config) error {
	daemon := keepalived.New(keepalived.Config{Dir: cfg.Modules.VIP.Keepalived.RunDir, Program: cfg.Modules.VIP.Keepalived.Program})
	plane := &dataPlane{choice: cfg.Modules.VIP.DataPlane}
	return errors.Join(
		daemon.Clear(ctx), // first: its addresses attract clients to this device
		plane.Apply(ctx, nil),
	)
}

// clearServices removes the rules of Services unless they belong to a kube-proxy, which uses the
// same names: the store has their owner. If the owner is unknown, because the store can't be read
// or is gone, or because edgecore never had any, rules without a kube-proxy are unused.
func (l *Lock) clearServices(ctx context.Context) error {
	ours, err := l.ownsServices(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to read the owner of Service rules from the store")
	}
	if !ours {
		if other, err := kubeproxy.Running(); err != nil || other {
			return err
		}
	}
	return kubeproxy.New(l.config.Modules.Services.Mode, "").Clear(ctx)
}

func (l *Lock) ownsServices(ctx context.Context) (ours bool, err error) {
	if _, err := os.Stat(storeConfig(l.config, nil).Path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	file, err := l.openStore(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = file.Close() }() // read only
	return services.Owns(agent.NewMemory(file, string(services.Name)))
}

// clearPodNetwork removes the pod network's kernel state, except the interfaces of running pods,
// which belong to their plugin.
func clearPodNetwork(ctx context.Context) error {
	return errors.Join(
		clearRoutes(ctx, podnet.Protocol),
		wireguard.New().Remove(),
		masquerade.New().Apply(ctx, masquerade.Rules{}),
	)
}

func clearRoutes(ctx context.Context, protocol uint8) error {
	kernel, err := netroute.Open(netroute.Config{Protocol: protocol})
	if err != nil {
		return err
	}
	defer kernel.Close()
	var ours []netroute.Found
	err = kernel.Routes(ctx, func() { ours = nil }, func(f netroute.Found) {
		if kernel.Ours(f) {
			ours = append(ours, f)
		}
	})
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range ours {
		if err := kernel.Delete(ctx, f.Route); err != nil {
			errs = append(errs, fmt.Errorf("removing a route: %w", err))
		}
	}
	return errors.Join(errs...)
}
