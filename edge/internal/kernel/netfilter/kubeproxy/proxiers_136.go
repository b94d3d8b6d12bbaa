//go:build kubernetes1.36

// How Kubernetes of 1.36 makes its proxiers.

package kubeproxy

import (
	"context"
	"net"

	corev1 "k8s.io/api/core/v1"
	utilsysctl "k8s.io/component-helpers/node/util/sysctl"
	"k8s.io/kubernetes/pkg/proxy"
	kubeproxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/iptables"
	"k8s.io/kubernetes/pkg/proxy/nftables"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"
	utiliptables "k8s.io/kubernetes/pkg/util/iptables"
)

type (
	detector        = proxyutil.LocalTrafficDetector
	families[T any] = map[corev1.IPFamily]T
)

func nftablesDual(ctx context.Context, config *kubeproxyconfig.KubeProxyConfiguration, detectors families[detector], node string) (proxy.Provider, error) {
	return nftables.NewDualStackProxier(ctx, config.SyncPeriod.Duration, config.MinSyncPeriod.Duration, config.Linux.MasqueradeAll, int(*config.NFTables.MasqueradeBit),
		detectors, node, families[net.IP]{}, nil, nil, config.NodePortAddresses, false)
}

func nftablesSingle(ctx context.Context, config *kubeproxyconfig.KubeProxyConfiguration, local detector, node string) (proxy.Provider, error) {
	return nftables.NewProxier(ctx, corev1.IPv4Protocol, config.SyncPeriod.Duration, config.MinSyncPeriod.Duration, config.Linux.MasqueradeAll, int(*config.NFTables.MasqueradeBit),
		local, node, nil, nil, nil, config.NodePortAddresses, false)
}

func iptablesDual(ctx context.Context, config *kubeproxyconfig.KubeProxyConfiguration, tools families[utiliptables.Interface], detectors families[detector], node string) (proxy.Provider, error) {
	return iptables.NewDualStackProxier(ctx, tools, utilsysctl.New(), config.SyncPeriod.Duration, config.MinSyncPeriod.Duration, config.Linux.MasqueradeAll, *config.IPTables.LocalhostNodePorts,
		int(*config.IPTables.MasqueradeBit), detectors, node, families[net.IP]{}, nil, nil, config.NodePortAddresses, false)
}

func iptablesSingle(ctx context.Context, config *kubeproxyconfig.KubeProxyConfiguration, tool utiliptables.Interface, local detector, node string) (proxy.Provider, error) {
	return iptables.NewProxier(ctx, corev1.IPv4Protocol, tool, utilsysctl.New(), config.SyncPeriod.Duration, config.MinSyncPeriod.Duration, config.Linux.MasqueradeAll, *config.IPTables.LocalhostNodePorts,
		int(*config.IPTables.MasqueradeBit), local, node, nil, nil, nil, config.NodePortAddresses, false)
}
