package edgeapi

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/edge/internal/core/connshare"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

const (
	sourcesAge  = time.Second            // how old the cached pod addresses may be
	sourcesWait = 3 * time.Second        // a pod that has just started may not have its address in its status yet
	sourcesPoll = 250 * time.Millisecond // between two looks in the meantime
)

var errNotAPod = errors.New("the listener for pods is for those of this device")

// podSources has the source addresses of this device's pods. The address of their listener is on
// the loopback interface, but Linux accepts packets to it on any (the weak host model), so that a
// host of the LAN which routes it here would reach it.
type podSources struct {
	nodeName   string
	backend    Backend
	interfaces func() ([]net.Addr, error)

	mu    sync.Mutex
	read  time.Time
	nets  []netip.Prefix
	addrs []netip.Addr
}

// check accepts the pods of this device in the handshake. It waits briefly for an address that is
// not known yet; the handshake's own timeout bounds how many can wait.
func (p *podSources) check(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	at, err := netip.ParseAddrPort(hello.Conn.RemoteAddr().String())
	if err != nil {
		return nil, errNotAPod
	}
	ctx, cancel := context.WithTimeout(hello.Context(), sourcesWait)
	defer cancel()
	for {
		if p.allows(ctx, at.Addr().Unmap()) {
			return nil, nil //nolint:nilnil // no other configuration, as tls.Config requires
		}
		select {
		case <-ctx.Done():
			return nil, errNotAPod
		case <-time.After(sourcesPoll):
		}
	}
}

func (p *podSources) allows(ctx context.Context, source netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.read) >= sourcesAge {
		p.refresh(ctx)
		p.read = time.Now()
	}
	return slices.Contains(p.addrs, source) || slices.ContainsFunc(p.nets, func(n netip.Prefix) bool { return n.Contains(source) })
}

// refresh collects the device's own addresses (pods in the host's network), the pod ranges of
// its Node, the addresses of its pods, and the networks on the device that these are in.
// Called with mu held.
func (p *podSources) refresh(ctx context.Context) {
	p.addrs, p.nets = nil, nil
	var links []netip.Prefix
	own, err := p.interfaces()
	if err == nil {
		for _, a := range own {
			if n, err := netip.ParsePrefix(a.String()); err == nil {
				links, p.addrs = append(links, n.Masked()), append(p.addrs, n.Addr().Unmap())
			}
		}
	}
	p.nets = append(p.nets, netip.MustParsePrefix("127.0.0.0/8"))
	for _, o := range p.held(ctx, "nodes", fields.OneTermEqualSelector("metadata.name", p.nodeName)) {
		if node, ok := o.(*corev1.Node); ok {
			for _, cidr := range node.Spec.PodCIDRs {
				if n, err := netip.ParsePrefix(cidr); err == nil {
					p.nets = append(p.nets, n.Masked())
				}
			}
		}
	}
	for _, o := range p.held(ctx, "pods", fields.Everything()) {
		pod, ok := o.(*corev1.Pod)
		if !ok || pod.Spec.HostNetwork {
			continue
		}
		for _, ip := range pod.Status.PodIPs {
			a, err := netip.ParseAddr(ip.IP)
			if err != nil || slices.Contains(p.addrs, a) {
				continue
			}
			p.addrs = append(p.addrs, a)
			for _, n := range links {
				if n.Contains(a) && n.Bits() > 0 {
					p.nets = append(p.nets, n)
				}
			}
		}
	}
}

func (p *podSources) held(ctx context.Context, resource string, selector fields.Selector) []any {
	items, _, err := p.backend.List(ctx, object.Selection{
		Resource: schema.GroupVersionResource{Version: "v1", Resource: resource}, Labels: labels.Everything(), Fields: selector,
	}, metamanager.ListOptions{Held: true})
	if err != nil {
		return nil
	}
	var all []any
	for i := range items {
		if o, err := object.Decode(items[i]); err == nil {
			all = append(all, o)
		}
	}
	return all
}

const (
	maxConns       = 512 // of a listener
	maxClientConns = 64  // of one address; a pod's clients keep theirs and use them again
	// maxStrange and maxStrangeConns are those of addresses that are not known to be pods of this
	// device: one that has started a moment ago, or a host of the LAN.
	maxStrange      = 32
	maxStrangeConns = 4
)

// bounded bounds connections, all together and of each address: above that they are closed at once.
// The clients of the loopback address are many, and share the whole; root has the socket, and the
// kubelet no connection at all. If known is not nil, addresses that it does not know have slots of
// their own: a client is judged by its hello, and one that doesn't send it would keep a pod's slot.
func bounded(l net.Listener, known func(netip.Addr) bool) net.Listener {
	shares, strange := connshare.New(maxConns, maxClientConns), connshare.New(maxStrange, maxStrangeConns)
	return connshare.Listen(l, func(a netip.Addr) (*connshare.Shares, string) {
		switch {
		case a.IsLoopback():
			return shares, ""
		case known != nil && !known(a):
			return strange.Each(a)
		}
		return shares.Each(a)
	})
}
