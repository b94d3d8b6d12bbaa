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
	"github.com/skerry-io/skerry/edge/internal/site/serviceview"
)

// podsWing runs the pods.
type podsWing struct {
	kubelet *kubelet
	order   *creationorder.Module
	images  *images.Server

	running []beehive.Entry
}

// podsConfig has the other wings' parts that pods need.
type podsConfig struct {
	site     *siteWing
	services *serviceview.View        // nil if no part of the device reads Services
	kept     func() ([]string, error) // images that garbage collection leaves alone; may be nil
	apps     bool
}

// newPods makes the kubelet and completes k.
func newPods(b *base, core *coreWing, k *kubelet, c podsConfig) (_ *podsWing, err error) {
	w := &podsWing{kubelet: k}
	if !b.config.Modules.Edged.Enable {
		return w, nil
	}
	if k.module, err = w.newEdged(b, core, c); err != nil {
		return nil, err
	}
	if w.order, err = creationorder.New(creationorder.Config{NodeName: b.node, Runtime: k.module.Runtime(), API: core.client()}); err != nil {
		return nil, err
	}
	var complete agent.Memory // the kubelet may ask the runtime itself
	if imageService(b.config) != "" {
		complete = b.memory(images.Name + ".complete")
	}
	if w.images, err = images.New(images.Config{
		Listen: func() (net.Listener, error) { return edgeapi.ListenUnix(imagesSocket(b.config)) }, Runtime: k.module.Runtime(), Images: k.module.Images(),
		Archive: b.config.Modules.Edged.SandboxImageArchive, API: core.client(), NodeName: b.node, Apps: c.apps,
		Kept: c.kept, Memory: b.memory(images.Name), Complete: complete, Boot: bootID(), BootTime: bootTime, Sync: images.Sync,
		Linked: core.meta.Linked,
	}); err != nil {
		return nil, err
	}
	if k.devices, err = deviceplugin.New(deviceplugin.Config{
		NodeName: b.node, Runtime: k.module.Runtime(), RootDir: b.config.Modules.Edged.RootDir, API: core.client(),
		Events: core.recorder(deviceplugin.Name), Recorrect: core.meta.Recorrect, Timeout: b.config.Modules.Edged.DevicePluginTimeout.Duration,
	}); err != nil {
		return nil, err
	}
	w.running = append(w.running, restarted(w.order), restarted(k.devices))
	if imageService(b.config) != "" {
		w.running = append(w.running, restarted(w.images))
	}
	// The kubelet's globals allow one run in a process: a failure ends edgecore, and systemd starts
	// it again. Containers go on. The next module doesn't wait for it: on its first boot it may
	// have to wait for the cloud.
	w.running = append(w.running, beehive.Entry{Module: k.module, Restart: beehive.Never(), StartTimeout: time.Millisecond, StopTimeout: 20 * time.Second})
	return w, nil
}

func (w *podsWing) newEdged(b *base, core *coreWing, with podsConfig) (*edged.Module, error) {
	c := b.config.Modules.Edged
	labels := map[string]string{v1alpha1.EdgeOwnLabel: ""} // the role label that kubectl shows follows: a node may not give itself that
	maps.Copy(labels, c.Labels)
	dns, domain := with.site.clusterDNS(b.config.Modules.Names)
	return edged.New(edged.Config{
		ClusterDNS: dns, ClusterDomain: domain,
		NodeName: b.node, Labels: labels, RootDir: c.RootDir, NodeIP: c.NodeIP, Kubelet: c.Kubelet, ClientCAFile: b.identity.ClientCAFile(),
		CertDir: kubeletKeys(b.config), Verbosity: b.config.Log.Verbosity, Host: edgeapi.Host, Transport: core.api.RoundTripper(edgeapi.Identity{Kubelet: true}),
		Events: core.recorder(edged.Name), Linked: core.meta.Linked,
		RuntimeService: runtimeService(b.config),
		ImageService:   imageService(b.config), Needs: []func(context.Context) error{w.prepareRuntime},
		ImageCredentialProviderConfig: c.ImageCredentialProviderConfig, ImageCredentialProviderBinDir: c.ImageCredentialProviderBinDir,
		Hold: shutdown.Hold, Share: func(s *corev1.Service) *corev1.Service { return with.services.Shared(s) },
	})
}

// prepareRuntime is awaited by the kubelet's start. A failure affects only some pods: the kubelet
// starts nevertheless.
func (w *podsWing) prepareRuntime(ctx context.Context) error {
	if err := w.order.Mend(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to remove dead containers with later creation times than their successors: the kubelet may take them for the newest")
	}
	deleted, err := unsynced.Delete(unsynced.All(w.kubelet.module.RootDir()))
	if len(deleted) > 0 {
		klog.FromContext(ctx).Info("Deleted files that a power cut left unreadable", "files", deleted)
	}
	if err := errors.Join(err, w.images.Settle(ctx), w.images.Prepare(ctx)); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to remove what a power cut left incomplete: some pods may not start")
	}
	w.images.TryRestore(ctx)
	return w.kubelet.devices.Prepare(ctx)
}
