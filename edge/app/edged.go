package app

import (
	"context"
	"errors"
	"maps"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
	"github.com/skerry-io/skerry/edge/internal/pods/creationorder"
	"github.com/skerry-io/skerry/edge/internal/pods/deviceplugin"
	"github.com/skerry-io/skerry/edge/internal/pods/edged"
	"github.com/skerry-io/skerry/edge/internal/pods/images"
	"github.com/skerry-io/skerry/edge/internal/pods/shutdown"
	"github.com/skerry-io/skerry/edge/internal/pods/unsynced"
)

func (a *App) newEdged() (*edged.Module, error) {
	c := a.config.Modules.Edged
	labels := map[string]string{v1alpha1.EdgeOwnLabel: ""} // the role label that kubectl shows follows: a node may not give itself that
	maps.Copy(labels, c.Labels)
	dns, domain := a.clusterDNS()
	return edged.New(edged.Config{
		ClusterDNS: dns, ClusterDomain: domain,
		NodeName: a.node, Labels: labels, RootDir: c.RootDir, NodeIP: c.NodeIP, Kubelet: c.Kubelet, ClientCAFile: a.identity.ClientCAFile(),
		CertDir: kubeletKeys(a.config), Verbosity: a.config.Log.Verbosity, Host: edgeapi.Host, Transport: a.api.RoundTripper(edgeapi.Identity{Kubelet: true}),
		ImageService: a.imageService(), Needs: []func(context.Context) error{a.prepareRuntime},
		ImageCredentialProviderConfig: c.ImageCredentialProviderConfig, ImageCredentialProviderBinDir: c.ImageCredentialProviderBinDir,
		Hold: shutdown.Hold, Share: func(s *corev1.Service) *corev1.Service { return a.services.Shared(s) },
	})
}

// prepareRuntime is awaited by the kubelet's start. A failure affects only some pods: the kubelet
// starts nevertheless.
func (a *App) prepareRuntime(ctx context.Context) error {
	if err := a.order.Mend(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to remove dead containers with later creation times than their successors: the kubelet may take them for the newest")
	}
	deleted, err := unsynced.Delete(unsynced.All(a.edged.RootDir()))
	if len(deleted) > 0 {
		klog.FromContext(ctx).Info("Deleted files that a power cut left unreadable", "files", deleted)
	}
	if err := errors.Join(err, a.images.Settle(ctx), a.images.Prepare(ctx)); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to remove what a power cut left incomplete: some pods may not start")
	}
	a.images.TryRestore(ctx)
	return a.devices.Prepare(ctx)
}

func (a *App) edgedParts() ([]beehive.Entry, error) {
	var err error
	if a.edged, err = a.newEdged(); err != nil {
		return nil, err
	}
	if a.order, err = creationorder.New(creationorder.Config{NodeName: a.node, Runtime: a.edged.Runtime(), API: a.api.ClientConfig(edgeapi.Identity{})}); err != nil {
		return nil, err
	}
	if a.images, err = images.New(images.Config{
		Listen: func() (net.Listener, error) { return edgeapi.ListenUnix(a.imagesSocket()) }, Runtime: a.edged.Runtime(), Images: a.edged.Images(),
		Archive: a.config.Modules.Edged.SandboxImageArchive, API: a.api.ClientConfig(edgeapi.Identity{}), NodeName: a.node, Apps: a.apps != nil,
		Kept: a.kept, Memory: agent.NewMemory(a.store, string(images.Name)), Boot: bootID(), Sync: images.Sync,
		Linked: a.meta.Linked,
	}); err != nil {
		return nil, err
	}
	if a.devices, err = deviceplugin.New(deviceplugin.Config{
		NodeName: a.node, Runtime: a.edged.Runtime(), RootDir: a.config.Modules.Edged.RootDir, API: a.api.ClientConfig(edgeapi.Identity{}),
		Events: a.recorder(string(deviceplugin.Name)), Recorrect: a.meta.Recorrect, Timeout: a.config.Modules.Edged.DevicePluginTimeout.Duration,
	}); err != nil {
		return nil, err
	}
	entries := []beehive.Entry{restarted(a.order), restarted(a.devices)}
	if a.imageService() != "" {
		entries = append(entries, restarted(a.images))
	}
	// The kubelet's globals allow one run in a process: a failure ends edgecore, and systemd starts
	// it again. Containers go on. The next module doesn't wait for it: on its first boot it may
	// have to wait for the cloud.
	return append(entries, beehive.Entry{Module: a.edged, Restart: beehive.Never(), StartTimeout: time.Millisecond, StopTimeout: 20 * time.Second}), nil
}
