// Package watchdog says WATCHDOG=1 to systemd (sd_notify(3)) while cloudcore is well.
//
// A replica that hangs keeps its links, and the Leases of its nodes are renewed no more. Where
// systemd keeps cloudcore (WatchdogSec= in cloudcore.service) it kills one of which it hears
// nothing, as the kubelet does by the livenessProbe. The package owns nothing and refuses nothing.
// Run is called once, Watch at any time.
package watchdog

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/health"
)

// Watchdog looks at the process for systemd. Its zero value is ready for use.
type Watchdog struct {
	live atomic.Pointer[map[string]health.Check]
}

// Watch has Run make these checks, those of /healthz. Before it none is made: cloudcore may wait
// for kube-apiserver as long as it takes before it has any.
func (w *Watchdog) Watch(live map[string]health.Check) { w.live.Store(&live) }

// Run looks three times in the time that systemd allows (sd_watchdog_enabled(3) asks for two), and
// says so while no check fails, until ctx ends. Without a watchdog it only waits.
func (w *Watchdog) Run(ctx context.Context) error {
	within, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("reading WATCHDOG_USEC and WATCHDOG_PID, which systemd sets: %w", err)
	}
	if within == 0 {
		<-ctx.Done()
		return nil
	}
	ticks := time.NewTicker(within / 3)
	defer ticks.Stop()
	for {
		if err := w.look(); err != nil {
			klog.FromContext(ctx).Error(err, "cloudcore is not well: systemd will restart it", "within", within)
		} else if _, err := daemon.SdNotify(false, daemon.SdNotifyWatchdog); err != nil {
			klog.FromContext(ctx).Error(err, "Saying WATCHDOG=1 to systemd failed")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
	}
}

// look returns what is wrong.
func (w *Watchdog) look() error {
	live := w.live.Load()
	if live == nil {
		return nil
	}
	var all []error
	for name, check := range *live {
		if err := check(); err != nil {
			all = append(all, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(all...)
}
