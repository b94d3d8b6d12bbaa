// Package apiredirect redirects pods' requests to the cluster's API, with their ordinary in-cluster
// configuration, to the API of this device.
//
// It owns the addresses of the cluster's API for pods: those of the Service default/kubernetes,
// which the kubelet gives to pods. It refuses IPv6 addresses, which it does not change. Plan
// computes the redirections, a Redirector applies them. While the Service is not known, or is
// deleted, existing redirections stay.
package apiredirect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/redirect"
)

// Name is the module's.
const Name message.Name = "apiredirect"

const (
	service  = "kubernetes"
	portName = "https"
	// resync is how often the kernel is read although the Service did not change: others write to
	// the same tables.
	resync = time.Minute
)

// Redirector makes the kernel redirect: *redirect.Driver.
type Redirector interface {
	Apply(want []redirect.Rule) error
}

// Config configures the agent.
type Config struct {
	// API configures a client of the edge API.
	API      *rest.Config
	Redirect Redirector
	// Listen is where the edge API serves pods. The zero value: pods are not redirected, and
	// leftovers of an earlier run are removed.
	Listen netip.AddrPort
	// Serve is called with the API's addresses for pods before any redirection: its certificate
	// must be valid for them.
	Serve func(addresses []netip.Addr) error
}

// New makes the agent.
func New(c Config) *agent.Module {
	kit := agent.Config{Name: Name, API: c.API, Resync: resync}
	kit.Start = func(_ context.Context, r *agent.Run) (agent.Sync, error) {
		if !c.Listen.IsValid() {
			return func(context.Context) (time.Duration, error) { return 0, c.Redirect.Apply(nil) }, nil
		}
		services, err := agent.Watch(r, corev1.SchemeGroupVersion.WithResource("services"), &corev1.Service{},
			agent.Selection{Namespace: metav1.NamespaceDefault, Fields: "metadata.name=" + service})
		if err != nil {
			return nil, err
		}
		return func(context.Context) (time.Duration, error) {
			s, known := services.Get(metav1.NamespaceDefault + "/" + service)
			if !known {
				return 0, nil // kube-apiserver makes it again at once
			}
			return 0, c.apply(Plan(s, c.Listen))
		}, nil
	}
	return agent.New(kit)
}

func (c *Config) apply(rules []redirect.Rule) error {
	if len(rules) == 0 {
		return errors.New("the Service default/kubernetes has no IPv4 address with a TCP port: pods can't be redirected to this device's API")
	}
	addresses := make([]netip.Addr, len(rules))
	for i, r := range rules {
		addresses[i] = r.From.Addr()
	}
	if err := c.Serve(addresses); err != nil {
		return err
	}
	if err := c.Redirect.Apply(rules); err != nil {
		return fmt.Errorf("redirecting pods to this device's API (disable with modules.edgeAPI.pods): %w", err)
	}
	return nil
}

// Plan returns the rules that redirect the Service's clients to listen: one for each address and
// the port that pods are given (KUBERNETES_SERVICE_PORT: the one called https, else the first).
func Plan(s *corev1.Service, listen netip.AddrPort) []redirect.Rule {
	var port uint16
	for _, p := range s.Spec.Ports {
		if (p.Protocol == "" || p.Protocol == corev1.ProtocolTCP) && p.Port > 0 && (port == 0 || p.Name == portName) {
			port = uint16(p.Port)
		}
	}
	if port == 0 {
		return nil
	}
	all := s.Spec.ClusterIPs
	if len(all) == 0 {
		all = []string{s.Spec.ClusterIP}
	}
	var rules []redirect.Rule
	for _, text := range all {
		if ip, err := netip.ParseAddr(text); err == nil && ip.Is4() { // "None" is not an address
			rules = append(rules, redirect.Rule{From: netip.AddrPortFrom(ip, port), To: listen})
		}
	}
	return rules
}
