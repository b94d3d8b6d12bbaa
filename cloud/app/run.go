package app

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/skerry-io/skerry/cloud/internal/core/config"
	"github.com/skerry-io/skerry/common/watchdog"
)

// Run makes an App and runs it until ctx ends, under systemd's watchdog from the first moment, as
// New may wait for kube-apiserver, to the last: devices are sent away after ctx has ended.
func Run(ctx context.Context, cfg *config.Config) error {
	dog, err := watchdog.New()
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error { return dog.Run(watching) })
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
