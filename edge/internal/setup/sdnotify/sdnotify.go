// Package sdnotify sends READY=1 to systemd (sd_notify(3), edgecore.service) once the modules
// before it in the wiring have started, and from then on the watchdog's notifications.
//
// `edgecore status` has an answer then, and units ordered after edgecore.service may ask. It waits
// neither for the kubelet nor for the link, which may take any time. It has no state; Run is called
// once. The kubelet in edgecore sends READY=1 as well, later: systemd takes the first.
package sdnotify

import (
	"context"

	"github.com/coreos/go-systemd/v22/daemon"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/watchdog"
)

// Module is the beehive module.
type Module struct{ watchdog *watchdog.Watchdog }

// New returns the module.
func New(w *watchdog.Watchdog) Module { return Module{w} }

// Name implements beehive.Module.
func (Module) Name() message.Name { return "sdnotify" }

// Run sends READY=1, and then repeatedly the watchdog's notifications, until ctx ends. Without
// systemd it sends no message. A socket that does not answer is no reason to end: systemd keeps
// the unit activating.
func (m Module) Run(ctx context.Context, port *beehive.Port) error {
	port.Ready()
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to send READY=1 to systemd, which keeps edgecore.service activating")
	}
	return m.watchdog.Run(ctx)
}
