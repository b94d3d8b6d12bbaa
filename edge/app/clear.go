package app

import (
	"context"
	"errors"
	"fmt"

	edgeconfig "github.com/skerry-io/skerry/edge/internal/config"
	"github.com/skerry-io/skerry/edge/internal/kernel/keepalived"
	"github.com/skerry-io/skerry/edge/internal/kernel/masquerade"
	"github.com/skerry-io/skerry/edge/internal/kernel/netroute"
	"github.com/skerry-io/skerry/edge/internal/kernel/redirect"
	"github.com/skerry-io/skerry/edge/internal/kernel/wireguard"
	"github.com/skerry-io/skerry/edge/internal/podnet"
)

// ClearKernel removes what an edgecore of this configuration has set up in the kernel, and what
// stays there when it ends, so that pods' traffic does not stop for a restart: routes, rules of
// virtual IPs, what leads pods to the edge API, what marks connections, routes and tunnels to other
// devices' pods and their masquerading, and a keepalived that a killed edgecore has left. What can't
// be taken back doesn't keep the rest from going; the error names all of it.
func (l *Lock) ClearKernel(ctx context.Context) error {
	cfg := l.config
	return errors.Join(
		clearVIPs(ctx, cfg),
		redirect.New().Apply(nil),
		clearMarks(ctx),
		clearRoutes(ctx, uint8(cfg.Modules.Route.Protocol)),
		clearRoutes(ctx, podnet.Protocol),
		wireguard.New().Remove(),
		masquerade.New().Apply(ctx, masquerade.Rules{}),
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
