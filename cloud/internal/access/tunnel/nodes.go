package tunnel

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// kubeletPort is the port of a kubelet that reports no port.
const kubeletPort = 10250

// Collections are shared copies of kube-apiserver's collections.
type Collections interface {
	Open(resource schema.GroupVersionResource) (store *kube.Store, release func())
}

// Nodes indexes the nodes by name and address.
type Nodes struct {
	// Set by NewNodes, never changed.
	collections Collections
	reserved    []netip.Addr // of the cloud
	services    *kube.Store  // the ranges of Services; followed as long as the process lives

	mu        sync.RWMutex
	nodes     map[types.NodeName]node
	addresses map[string][]types.NodeName
	seen      map[types.NodeName]bool // changed while Run reads those that were there before; else nil
}

type node struct {
	edge      bool
	port      string // of the kubelet
	addresses []string
	podCIDRs  []string
	internal  string // the address by which the cluster reaches it; "" without one
}

// NewNodes returns Nodes that are empty before Run, which must be called. No address of the
// cloud's own leads to an edge.
func NewNodes(collections Collections, cloud []netip.Addr) *Nodes {
	services, _ := collections.Open(networkingv1.SchemeGroupVersion.WithResource("servicecidrs"))
	return &Nodes{collections: collections, reserved: cloud, services: services, nodes: map[types.NodeName]node{}, addresses: map[string][]types.NodeName{}}
}

// Run follows the nodes until ctx ends.
func (n *Nodes) Run(ctx context.Context) error {
	resource := corev1.SchemeGroupVersion.WithResource("nodes")
	store, release := n.collections.Open(resource)
	defer release()
	log := klog.FromContext(ctx)
	changed := func(old, new *kube.Object) { n.changed(log, old, new) }
	n.mu.Lock()
	n.seen = map[types.NodeName]bool{}
	n.mu.Unlock()
	defer store.Observe(changed)()
	// Those that were known before the store was observed.
	var have []*kube.Object
	store.Each(&kube.Selection{}, func(o *kube.Object) bool {
		have = append(have, o)
		return true
	})
	for _, o := range have {
		if full := decode(log, o); full != nil {
			n.begin(full)
		}
	}
	n.mu.Lock()
	n.seen = nil
	n.mu.Unlock()
	<-ctx.Done()
	return nil
}

// begin notes a node as it was when Run began, unless something newer is known.
func (n *Nodes) begin(full *corev1.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if name := types.NodeName(full.Name); !n.seen[name] {
		n.put(name, full)
	}
}

func decode(log klog.Logger, from *kube.Object) *corev1.Node {
	o, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), from.Raw)
	if err != nil {
		log.Error(err, "Failed to read a Node, ignoring it", "node", from.Name)
		return nil
	}
	full, _ := o.(*corev1.Node)
	return full
}

func (n *Nodes) changed(log klog.Logger, old, new *kube.Object) {
	if new == nil {
		n.set(types.NodeName(old.Name), nil)
	} else if full := decode(log, new); full != nil {
		n.set(types.NodeName(new.Name), full)
	}
}

// set notes a node as it is; nil: it is gone.
func (n *Nodes) set(name types.NodeName, full *corev1.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.seen != nil {
		n.seen[name] = true
	}
	n.put(name, full)
}

// put is set with n.mu held.
func (n *Nodes) put(name types.NodeName, full *corev1.Node) {
	for _, a := range n.nodes[name].addresses {
		n.addresses[a] = slices.DeleteFunc(n.addresses[a], func(other types.NodeName) bool { return other == name })
		if len(n.addresses[a]) == 0 {
			delete(n.addresses, a)
		}
	}
	delete(n.nodes, name)
	if full == nil {
		return
	}
	_, edge := full.Labels[v1alpha1.EdgeOwnLabel]
	next := node{edge: edge, port: strconv.Itoa(kubeletPort), podCIDRs: full.Spec.PodCIDRs}
	// A server below port 1024 is no kubelet of a device: a node could be named as a host that
	// serves HTTPS is.
	if p := full.Status.DaemonEndpoints.KubeletEndpoint.Port; p >= 1024 || p != 0 && !edge {
		next.port = strconv.Itoa(int(p))
	}
	for _, a := range full.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if err != nil {
			continue
		}
		text := ip.Unmap().String()
		if a.Type == corev1.NodeInternalIP && next.internal == "" {
			next.internal = text
		}
		if !slices.Contains(next.addresses, text) {
			next.addresses = append(next.addresses, text)
			n.addresses[text] = append(n.addresses[text], name)
		}
	}
	n.nodes[name] = next
}

// kubelet returns where the kubelet of a node is: behind its link, or at an address.
func (n *Nodes) kubelet(name types.NodeName) (edge bool, address string, err error) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	found, ok := n.nodes[name]
	switch {
	case !ok:
		return false, "", fmt.Errorf("there is no node %s", name)
	case found.edge:
		return true, "", nil
	case found.internal == "":
		return false, "", fmt.Errorf("node %s has no InternalIP", name)
	}
	return false, net.JoinHostPort(found.internal, found.port), nil
}

// destination is where a target leads.
type destination struct {
	edge    bool
	node    types.NodeName // where edge
	address string         // to dial, where not
}

// find resolves a target. A name is that of one node, which its certificate shows. An
// address is reported by a node itself: it leads to an edge only at the port that kubelets have,
// only if no other node claims it, and only if it can't be a Service's, a pod's or the cloud's. In
// all other cases it leads where it would without Skerry; but where two edges claim it, nowhere:
// behind different NATs they may well have the same, and which is meant is unknown.
func (n *Nodes) find(host, port string) (destination, error) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if found, ok := n.nodes[types.NodeName(host)]; ok {
		switch {
		case found.edge && port != found.port:
			return destination{}, fmt.Errorf("port %s of %s can't be reached: its link leads to its kubelet alone, port %s", port, host, found.port)
		case found.edge:
			return destination{edge: true, node: types.NodeName(host)}, nil
		case found.internal != "":
			return destination{address: found.internal}, nil
		}
		return destination{address: host}, nil
	}
	direct := destination{address: host}
	ip, err := netip.ParseAddr(host)
	if err != nil || port != strconv.Itoa(kubeletPort) || n.taken(ip.Unmap()) {
		return direct, nil
	}
	var edges []string
	for _, name := range n.addresses[ip.Unmap().String()] {
		found := n.nodes[name]
		if !found.edge {
			return direct, nil
		}
		if found.port == port {
			edges = append(edges, string(name))
		}
	}
	switch len(edges) {
	case 0:
		return direct, nil
	case 1:
		return destination{edge: true, node: types.NodeName(edges[0])}, nil
	}
	slices.Sort(edges)
	return destination{}, fmt.Errorf("%s is the address of %s: let kube-apiserver ask for names, by --kubelet-preferred-address-types=Hostname,InternalIP",
		host, strings.Join(edges, " and of "))
}

// taken reports whether an address is the cloud's, in a range of Services, or in the range of a
// node's pods. n.mu is held.
func (n *Nodes) taken(ip netip.Addr) bool {
	if slices.Contains(n.reserved, ip) {
		return true
	}
	contains := func(cidrs []string) bool {
		return slices.ContainsFunc(cidrs, func(cidr string) bool {
			prefix, err := netip.ParsePrefix(cidr)
			return err == nil && prefix.Contains(ip)
		})
	}
	for _, name := range n.nodes {
		if contains(name.podCIDRs) {
			return true
		}
	}
	found := false
	n.services.Each(&kube.Selection{}, func(o *kube.Object) bool {
		decoded, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), o.Raw)
		if full, ok := decoded.(*networkingv1.ServiceCIDR); err == nil && ok {
			found = contains(full.Spec.CIDRs)
		}
		return !found
	})
	return found
}
