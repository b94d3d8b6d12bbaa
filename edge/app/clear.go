package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/kernel/hostaddress"
	"github.com/skerry-io/skerry/edge/internal/kernel/keepalived"
	"github.com/skerry-io/skerry/edge/internal/kernel/kubeproxy"
	"github.com/skerry-io/skerry/edge/internal/kernel/masquerade"
	"github.com/skerry-io/skerry/edge/internal/kernel/netroute"
	"github.com/skerry-io/skerry/edge/internal/kernel/redirect"
	"github.com/skerry-io/skerry/edge/internal/kernel/wireguard"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
	"github.com/skerry-io/skerry/edge/internal/site/podnet"
	"github.com/skerry-io/skerry/edge/internal/site/services"
)

// ClearKernel removes what an edgecore of this configuration has set up in the kernel, and what
// stays there when it ends, so that pods' traffic does not stop for a restart: routes, rules of
// virtual IPs and of Services, what leads pods to the edge API, the address of names, what marks
// connections, routes and tunnels to other devices' pods and their masquerading, and a keepalived
// that a killed edgecore has left. What can't be taken back doesn't keep the rest from going; the
// error names all of it.
func (l *Lock) ClearKernel(ctx context.Context) error {
	cfg := l.config
	return errors.Join(
		clearVIPs(ctx, cfg),
		l.clearServices(ctx),
		redirect.New().Apply(nil),
		hostaddress.Keep(), // none
		clearMarks(ctx),
		clearRoutes(ctx, uint8(cfg.Modules.Route.Protocol)),
		clearPodNetwork(ctx),
	)
}

// clearVIPs ends a keepalived that an earlier edgecore has left, and removes the rules of virtual
// IPs. It must not run beside a module that serves them.
func clearVIPs(ctx context.Context, cfg *edgeconfig.Config) error {
	daemon := keepalived.New(keepalived.Config{Dir: cfg.Modules.VIP.Keepalived.RunDir, Program: cfg.Modules.VIP.Keepalived.Program})
	plane := &dataPlane{choice: cfg.Modules.VIP.DataPlane}
	return errors.Join(
		daemon.Clear(ctx), // first: its addresses lead clients here
		plane.Apply(ctx, nil),
	)
}

// clearServices removes the rules of Services unless they are a kube-proxy's, which has the same
// names for its own: the store says whose they are. Where it says nothing, because it can't be read
// or is gone, or because edgecore never had any, rules without a kube-proxy serve no one.
func (l *Lock) clearServices(ctx context.Context) error {
	ours, err := l.ownsServices(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "The store does not tell whose the rules of Services are")
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
	defer func() { _ = file.Close() }() // nothing is written
	return services.Owns(agent.NewMemory(file, string(services.Name)))
}

// clearPodNetwork removes what the pod network has in the kernel, but for what leads to pods that
// run, which is their plugin's.
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
