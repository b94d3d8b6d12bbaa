// Package loadbalancer stands in for a provider's load balancer, on a host that routes to the
// cluster's nodes: it gives every Service of type LoadBalancer one address, and forwards
// connections to the nodes that have a ready pod of the Service by their health check.
//
// It owns one chain of the host's nat table, which it replaces whole, and the Services'
// status.loadBalancer. It refuses to guess: a node that does not answer gets no new connection.
// Connections that are open stay where they are, as at balancers that drain. Concurrency: Run
// is called once.
package loadbalancer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

const (
	// Chain is the chain of the nat table.
	Chain = "TRIAL-LB"
	// period is between two health checks of a node, and failures how many of them in a row take it
	// out: the shortest that providers let one choose.
	period   = time.Second
	failures = 2
	// proxyHealth is kube-proxy's own health check, which reports whether a node serves Services at
	// all.
	proxyHealth = 10256
)

// Config configures a LoadBalancer.
type Config struct {
	Client  kubernetes.Interface
	Address netip.Addr   // the Services' address
	Nodes   []netip.Addr // the provider's registered machines
}

// A target is a node and the port by which it reports that it is healthy for a Service.
type target struct {
	node netip.Addr
	port int32
}

// LoadBalancer is the state between two rounds.
type LoadBalancer struct {
	cfg    Config
	client *http.Client
	failed map[target]int // owned by Run; a target that was never healthy has at least `failures`
	rules  string         // the chain's last known rules
}

// New makes a balancer.
func New(cfg Config) *LoadBalancer {
	return &LoadBalancer{
		cfg: cfg, failed: map[target]int{},
		client: &http.Client{Timeout: period, Transport: &http.Transport{DisableKeepAlives: true}},
	}
}

// Run balances until ctx ends. A failed round is repeated in the next one; the chain stays as it is
// in the meantime.
func (b *LoadBalancer) Run(ctx context.Context) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		if err := b.round(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Failed to balance")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (b *LoadBalancer) round(ctx context.Context) error {
	list, err := b.cfg.Client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing Services: %w", err)
	}
	services := slices.DeleteFunc(list.Items, func(s corev1.Service) bool { return s.Spec.Type != corev1.ServiceTypeLoadBalancer })
	var errs []error
	for i := range services {
		errs = append(errs, b.announce(ctx, &services[i]))
	}
	healthy := b.check(ctx, services)
	rules := Rules(b.cfg.Address, services, func(s *corev1.Service) []netip.Addr {
		return slices.DeleteFunc(slices.Clone(b.cfg.Nodes), func(n netip.Addr) bool { return !healthy[target{n, healthPort(s)}] })
	})
	if rules != b.rules {
		if err := restore(ctx, rules); err != nil {
			return errors.Join(append(errs, err)...)
		}
		klog.FromContext(ctx).Info("Rules changed", "rules", rules)
		b.rules = rules
	}
	return errors.Join(errs...)
}

// announce writes the address into the Service's status.
func (b *LoadBalancer) announce(ctx context.Context, s *corev1.Service) error {
	want := []corev1.LoadBalancerIngress{{IP: b.cfg.Address.String()}}
	if have := s.Status.LoadBalancer.Ingress; len(have) == 1 && have[0].IP == want[0].IP {
		return nil
	}
	s.Status.LoadBalancer.Ingress = want
	if _, err := b.cfg.Client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, s, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("writing the address of %s/%s: %w", s.Namespace, s.Name, err)
	}
	return nil
}

// healthPort is the port where a node reports whether it has a ready pod of the Service; where any
// node will do, whether it serves Services.
func healthPort(s *corev1.Service) int32 {
	if s.Spec.HealthCheckNodePort != 0 {
		return s.Spec.HealthCheckNodePort
	}
	return proxyHealth
}

// check asks every node, all at the same time.
func (b *LoadBalancer) check(ctx context.Context, services []corev1.Service) map[target]bool {
	targets := map[target]bool{}
	for i := range services {
		for _, n := range b.cfg.Nodes {
			targets[target{n, healthPort(&services[i])}] = false
		}
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	answers := map[target]bool{}
	for t := range targets {
		all.Go(func() {
			ok := b.ask(ctx, t)
			mu.Lock()
			defer mu.Unlock()
			answers[t] = ok
		})
	}
	all.Wait()
	failed := map[target]int{} // without those of Services that are gone
	for t, ok := range answers {
		before, known := b.failed[t]
		switch {
		case ok:
			failed[t] = 0
		case !known:
			failed[t] = failures
		default:
			failed[t] = min(before+1, failures)
		}
		targets[t] = failed[t] < failures
	}
	b.failed = failed
	return targets
}

func (b *LoadBalancer) ask(ctx context.Context, t target) bool {
	url := "http://" + net.JoinHostPort(t.node.String(), strconv.Itoa(int(t.port))) + "/healthz"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	res, err := b.client.Do(req)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 1<<16)) // the code is the answer
	return res.StatusCode == http.StatusOK
}

// Rules is the chain, as iptables-restore reads it: each new connection to a port of a Service goes
// to the NodePort of one of its healthy nodes, at random.
func Rules(address netip.Addr, services []corev1.Service, healthy func(*corev1.Service) []netip.Addr) string {
	var lines []string
	for i := range services {
		nodes := healthy(&services[i])
		for _, p := range services[i].Spec.Ports {
			if p.NodePort == 0 {
				continue
			}
			for k, n := range nodes {
				// One of those that are left; the last takes the rest.
				chance := ""
				if left := len(nodes) - k; left > 1 {
					chance = " -m statistic --mode random --probability " + strconv.FormatFloat(1/float64(left), 'f', 6, 64)
				}
				lines = append(lines, fmt.Sprintf("-A %s -d %s/32 -p %s --dport %d%s -j DNAT --to-destination %s", Chain, address,
					strings.ToLower(string(p.Protocol)), p.Port, chance, net.JoinHostPort(n.String(), strconv.Itoa(int(p.NodePort)))))
			}
		}
	}
	return "*nat\n:" + Chain + " - [0:0]\n" + strings.Join(append(lines, "COMMIT"), "\n") + "\n"
}

// restore replaces the chain in one step.
func restore(ctx context.Context, rules string) error {
	cmd := exec.CommandContext(ctx, "iptables-restore", "--noflush", "--wait", "5")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("replacing the chain %s: %w: %s", Chain, err, strings.TrimSpace(string(out)))
	}
	return nil
}
