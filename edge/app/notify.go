package app

import (
	"context"

	"github.com/coreos/go-systemd/v22/daemon"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
)

// notifyModule says READY=1 to systemd (sd_notify(3)) once the parts above it in the wiring have started: `edgecore status` has an answer then, and what is ordered
// behind edgecore.service may ask. It waits neither for the kubelet nor for the link, which may take as long as they take. The kubelet says READY=1 too, later.
type notifyModule struct{}

// Name implements beehive.Module.
func (notifyModule) Name() message.Name { return "notify" }

// Run says it and waits for ctx. Without systemd it says nothing. A socket that does not answer is no reason to end: systemd has its own timeout.
func (notifyModule) Run(ctx context.Context, port *beehive.Port) error {
	port.Ready()
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		klog.FromContext(ctx).Error(err, "Saying READY=1 to systemd failed")
	}
	<-ctx.Done()
	return nil
}
