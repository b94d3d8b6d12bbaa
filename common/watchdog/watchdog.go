// Package watchdog sends WATCHDOG=1 to systemd (sd_notify(3)) while the process is healthy.
//
// systemd kills a process with WatchdogSec= in its unit that sends no notification in that time:
// one that hangs. A cloudcore that hangs keeps its links, and the Leases of its nodes are not
// renewed; an edgecore that hangs serves no requests, and nobody is there to start it again. The
// package owns the environment's WATCHDOG_USEC and WATCHDOG_PID. Run is called by one goroutine at
// a time, Watch at any time.
package watchdog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/health"
)

// Watchdog checks the process for systemd.
type Watchdog struct {
	within time.Duration // 0: nobody listens
	live   atomic.Pointer[map[string]health.Check]
}

// New reads systemd's interval, and takes it out of the environment: the kubelet inside edgecore
// would send WATCHDOG=1 as well, for a process of which it is a part.
func New() (*Watchdog, error) {
	within, err := daemon.SdWatchdogEnabled(true)
	if err != nil {
		return nil, fmt.Errorf("reading WATCHDOG_USEC and WATCHDOG_PID, which systemd sets: %w", err)
	}
	return &Watchdog{within: within}, nil
}

// PassOn puts systemd's interval into the environment again, for a program that is executed in the
// place of this process: systemd still expects its notifications.
func (w *Watchdog) PassOn() error {
	if w.within == 0 {
		return nil
	}
	return errors.Join(os.Setenv("WATCHDOG_USEC", strconv.FormatInt(w.within.Microseconds(), 10)), os.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid())))
}

// Watch has Run make these checks, those of /healthz. Before it no check is made: cloudcore may
// wait for kube-apiserver as long as it takes before it has any.
func (w *Watchdog) Watch(live map[string]health.Check) { w.live.Store(&live) }

// Run checks three times in the interval of systemd (sd_watchdog_enabled(3) asks for two), and
// notifies it while no check fails, until ctx ends. Without a watchdog it only waits.
func (w *Watchdog) Run(ctx context.Context) error {
	if w.within == 0 {
		<-ctx.Done()
		return nil
	}
	ticks := time.NewTicker(w.within / 3)
	defer ticks.Stop()
	for {
		if err := w.look(); err != nil {
			klog.FromContext(ctx).Error(err, "Withholding the watchdog notification: a check fails, systemd will end the process", "within", w.within)
		} else if _, err := daemon.SdNotify(false, daemon.SdNotifyWatchdog); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to notify systemd's watchdog, which ends the process if that continues")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
	}
}

// look returns the first failure.
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
