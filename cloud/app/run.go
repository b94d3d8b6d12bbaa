package app

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/skerry-io/skerry/cloud/internal/core/config"
	"github.com/skerry-io/skerry/common/logging"
	"github.com/skerry-io/skerry/common/watchdog"
)

// Run makes an App, which logs to log, and runs it until ctx ends. It does so under systemd's
// watchdog from the first moment, as New may wait for kube-apiserver, to the last: devices are sent
// away after ctx has ended.
func Run(ctx context.Context, cfg *config.Config, log *logging.Log) error {
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
		a.LogsTo(log)
		dog.Watch(a.live())
		return a.Run(ctx)
	})
	return g.Wait()
}
