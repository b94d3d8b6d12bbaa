package app

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/skerry-io/skerry/cloud/internal/config"
	"github.com/skerry-io/skerry/cloud/internal/watchdog"
)

// Run makes an App and runs it until ctx ends, under systemd's watchdog from the first moment: New
// may wait for kube-apiserver.
func Run(ctx context.Context, cfg *config.Config) error {
	var dog watchdog.Watchdog
	g, ctx := errgroup.WithContext(ctx)
	ctx, stop := context.WithCancel(ctx)
	g.Go(func() error { return dog.Run(ctx) })
	g.Go(func() error {
		defer stop()
		a, err := New(ctx, cfg)
		if err != nil {
			return err
		}
		dog.Watch(a.live())
		return a.Run(ctx)
	})
	return g.Wait()
}
