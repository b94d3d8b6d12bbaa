// Package kubeproxy is Kubernetes' own programming of ClusterIPs and NodePorts, as a driver: its
// nftables mode, and its iptables mode for kernels before that.
//
// It owns the nftables tables and iptables chains of kube-proxy's names, which outlive the process
// on purpose. It must not run together with another kube-proxy: its caller checks that first. A
// Proxy may be called by any goroutine. It can't be stopped (its loop has no end in Kubernetes'
// code), so a process opens one.
package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	kubeproxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/iptables"
	"k8s.io/kubernetes/pkg/proxy/nftables"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"
	utiliptables "k8s.io/kubernetes/pkg/util/iptables"
	"sigs.k8s.io/knftables"
)

// Proxy is the input of an opened driver; the subset of Kubernetes' proxy.Provider.
type Proxy interface {
	OnServiceAdd(s *corev1.Service)
	OnServiceUpdate(old, s *corev1.Service)
	OnServiceDelete(s *corev1.Service)
	OnServiceSynced()
	OnEndpointSliceAdd(s *discoveryv1.EndpointSlice)
	OnEndpointSliceUpdate(old, s *discoveryv1.EndpointSlice)
	OnEndpointSliceDelete(s *discoveryv1.EndpointSlice)
	OnEndpointSlicesSynced()
	OnTopologyChange(labels map[string]string)
	SyncLoop()
}

// The modes.
const (
	NFTables = "nftables"
	IPTables = "iptables"
)

const (
	// minSync gathers changes of a moment into one transaction.
	minSync = 200 * time.Millisecond
	// retry is the delay before a failed transaction is retried.
	retry = 5 * time.Second
	// masqueradeBit is kube-proxy's default: bit 14 of the packet mark.
	masqueradeBit = 14
)

// Driver opens the proxy.
type Driver struct {
	mode, node string
	refusals   []knftables.Interface // of each family, once they are open
}

// New makes a Driver. It does not touch the kernel.
func New(mode, node string) *Driver { return &Driver{mode: mode, node: node} }

// Open makes the proxy, and returns its mode. No rule is written before both Synced calls.
func (d *Driver) Open(ctx context.Context) (Proxy, string, error) {
	config := configuration()
	if err := refuseAtOnce(); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to lift the ICMP rate limit: some connections to a Service without endpoints time out instead of being refused")
	}
	if d.mode != IPTables {
		p, err := openNFTables(ctx, config, d.node)
		if err == nil {
			return p, NFTables, nil
		}
		if d.mode == NFTables {
			return nil, "", fmt.Errorf("services.mode is nftables: %w", err)
		}
		q, err2 := openIPTables(ctx, config, d.node)
		if err2 != nil {
			return nil, "", errors.Join(fmt.Errorf("nftables: %w", err), fmt.Errorf("iptables: %w", err2))
		}
		return q, IPTables, nil
	}
	p, err := openIPTables(ctx, config, d.node)
	return p, IPTables, err
}

// Clear removes an earlier run's rules from the kernel, in either mode.
func (*Driver) Clear(ctx context.Context) error {
	failed := nftables.CleanupLeftovers(ctx)
	if iptablesThere() {
		failed = iptables.CleanupLeftovers(ctx) || failed
	}
	if failed {
		return errors.New("failed to remove the rules of Services from the kernel; see the log")
	}
	return nil
}

func configuration() *kubeproxyconfig.KubeProxyConfiguration {
	bit, localhost := int32(masqueradeBit), false
	c := &kubeproxyconfig.KubeProxyConfiguration{
		SyncPeriod: metav1.Duration{Duration: retry}, MinSyncPeriod: metav1.Duration{Duration: minSync},
	}
	c.NFTables.MasqueradeBit, c.IPTables.MasqueradeBit, c.IPTables.LocalhostNodePorts = &bit, &bit, &localhost
	return c
}

// dualStack reports whether the kernel has IPv6.
func dualStack() bool {
	_, err := os.Stat("/proc/net/if_inet6")
	return err == nil
}

func detectors() map[corev1.IPFamily]proxyutil.LocalTrafficDetector {
	return map[corev1.IPFamily]proxyutil.LocalTrafficDetector{
		corev1.IPv4Protocol: proxyutil.NewNoOpLocalDetector(), corev1.IPv6Protocol: proxyutil.NewNoOpLocalDetector(),
	}
}

func openNFTables(ctx context.Context, config *kubeproxyconfig.KubeProxyConfiguration, node string) (Proxy, error) {
	if dualStack() {
		return nftablesDual(ctx, config, detectors(), node)
	}
	return nftablesSingle(ctx, config, detectors()[corev1.IPv4Protocol], node)
}

func iptablesThere() bool { return utiliptables.New(utiliptables.ProtocolIPv4).Present() == nil }

func openIPTables(ctx context.Context, config *kubeproxyconfig.KubeProxyConfiguration, node string) (Proxy, error) {
	v4, v6 := utiliptables.New(utiliptables.ProtocolIPv4), utiliptables.New(utiliptables.ProtocolIPv6)
	if err := v4.Present(); err != nil {
		return nil, fmt.Errorf("iptables is not installed, or its nat table can't be used: %w", err)
	}
	if dualStack() && v6.Present() == nil {
		tools := map[corev1.IPFamily]utiliptables.Interface{corev1.IPv4Protocol: v4, corev1.IPv6Protocol: v6}
		return iptablesDual(ctx, config, tools, detectors(), node)
	}
	return iptablesSingle(ctx, config, v4, detectors()[corev1.IPv4Protocol], node)
}
