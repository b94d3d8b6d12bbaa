package vip

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

const (
	// guardsEvery is how often names are resolved and addresses of kube-apiserver are listed again,
	// and guardsRetry how soon after a failure.
	guardsEvery = time.Minute
	guardsRetry = 2 * time.Second
	// guardsTimeout bounds one look.
	guardsTimeout = 10 * time.Second
)

// errGuardsUnknown holds allocations back until the protected addresses are known.
var errGuardsUnknown = errors.New("the protected addresses are not known yet")

// guards finds the addresses of cloudcore and of kube-apiserver and the ranges of Services. Where a
// look-up fails the last result stays; before each has succeeded once, now returns an error.
type guards struct {
	client kubernetes.Interface
	hosts  []string // names and addresses of cloudcore
	server string   // kube-apiserver, as cloudcore reaches it

	mu    sync.Mutex
	known bool
	all   []Protected

	resolved map[string][]netip.Addr // by name; owned by run
}

func newGuards(client kubernetes.Interface, server string, hosts []string) *guards {
	return &guards{client: client, hosts: hosts, server: server, resolved: map[string][]netip.Addr{}}
}

func (g *guards) now() (all []Protected, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.all, g.known
}

// run looks until ctx ends, and calls changed when something is new.
func (g *guards) run(ctx context.Context, changed func()) {
	for {
		all, err := g.look(ctx)
		if ctx.Err() != nil {
			return
		}
		wait := guardsEvery
		if err != nil {
			klog.FromContext(ctx).Error(err, "Failed to find all addresses that virtual IPs must not use, retrying", "retryIn", guardsRetry)
			wait = guardsRetry
		}
		g.mu.Lock()
		news := false
		switch {
		case err == nil:
			news = !g.known || !slices.Equal(g.all, all)
			g.known, g.all = true, all
		case !g.known:
			g.all = all
		}
		g.mu.Unlock()
		if news {
			changed()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// look finds everything out once. With an error it returns the results of the look-ups that
// succeeded.
func (g *guards) look(ctx context.Context) ([]Protected, error) {
	ctx, cancel := context.WithTimeout(ctx, guardsTimeout)
	defer cancel()
	var all []Protected
	var errs []error
	add := func(name, why string) {
		if ips, err := resolve(ctx, name); err == nil {
			g.resolved[name] = ips
		} else { // a resolver that does not answer holds no allocation back: its last answer counts
			klog.FromContext(ctx).V(2).Info("Failed to resolve a name whose addresses virtual IPs must not use", "name", name, "err", err)
		}
		for _, ip := range g.resolved[name] {
			all = append(all, host(ip, why))
		}
	}
	for _, name := range g.hosts {
		add(name, "an address of cloudcore")
	}
	if u, err := url.Parse(g.server); err == nil && u.Hostname() != "" {
		add(u.Hostname(), "an address of kube-apiserver")
	}
	slicesOf, err := g.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=kubernetes", ResourceVersion: "0",
	})
	if err != nil {
		errs = append(errs, fmt.Errorf("listing the addresses of kube-apiserver: %w", err))
	} else {
		for _, s := range slicesOf.Items {
			for _, e := range s.Endpoints {
				for _, text := range e.Addresses {
					if ip, err := netip.ParseAddr(text); err == nil {
						all = append(all, host(ip.Unmap(), "an address of kube-apiserver"))
					}
				}
			}
		}
	}
	ranges, err := g.client.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	switch {
	case apierrors.IsNotFound(err): // before Kubernetes 1.33 the ranges are flags of kube-apiserver; Services' own addresses are known
	case err != nil:
		errs = append(errs, fmt.Errorf("listing the ranges of Services: %w", err))
	default:
		for _, r := range ranges.Items {
			for _, text := range r.Spec.CIDRs {
				if p, err := netip.ParsePrefix(text); err == nil {
					all = append(all, Protected{p.Masked(), "a range of Services"})
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b Protected) int { return a.Prefix.Compare(b.Prefix) })
	return slices.Compact(all), errors.Join(errs...)
}

// resolve finds the addresses of a host. A name that does not exist has no addresses, and is no
// error.
func resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(name); err == nil {
		return []netip.Addr{ip.Unmap()}, nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	var dns *net.DNSError
	if errors.As(err, &dns) && dns.IsNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("resolving %s: %w", name, err)
	}
	out := make([]netip.Addr, 0, len(ips))
	for _, ip := range ips {
		out = append(out, ip.Unmap())
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out, nil
}
