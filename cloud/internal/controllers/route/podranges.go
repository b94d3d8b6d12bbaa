package route

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/claim"
)

// podRanges are the ranges of every node's pods. A device has its own alone. Its methods may be
// called by many goroutines at once; its size is that of the cluster.
type podRanges struct {
	mu     sync.Mutex
	byNode map[string]podRange
}

// podRange is one Node's ranges.
type podRange struct {
	ranges []netip.Prefix
	edge   bool
}

// update records a change of a Node, and reports whether it changed a range. A range is given once
// and stays: only a Node without a known range is decoded.
func (p *podRanges) update(old, now *kube.Object) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byNode == nil {
		p.byNode = map[string]podRange{}
	}
	if now == nil || old != nil && old.UID != now.UID {
		if _, had := p.byNode[nameOf(old)]; had {
			delete(p.byNode, old.Name)
			changed = true
		}
	}
	if now == nil {
		return changed
	}
	if have, had := p.byNode[now.Name]; had {
		if edge := v1alpha1.IsEdge(now.Labels); edge != have.edge {
			p.byNode[now.Name], changed = podRange{have.ranges, edge}, true
		}
		return changed
	}
	ranges := rangesOf(now)
	if len(ranges) > 0 {
		p.byNode[now.Name] = podRange{ranges, v1alpha1.IsEdge(now.Labels)}
	}
	return changed || len(ranges) > 0
}

func nameOf(o *kube.Object) string {
	if o == nil {
		return ""
	}
	return o.Name
}

func rangesOf(o *kube.Object) (all []netip.Prefix) {
	decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(o.Raw, nil, nil)
	node, ok := decoded.(*corev1.Node)
	if err != nil || !ok {
		return nil // a Node that can't be read has no range that could be protected
	}
	for _, text := range node.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// overlapped names the first range that a subnet overlaps, and its node; "" without one. A device
// sets its range itself: it counts inside the podSubnets of a pool, and takes no other route away.
func (p *podRanges) overlapped(subnet string, subnets []netip.Prefix) string {
	to, err := parseSubnet(subnet)
	if err != nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	name, at := "", netip.Prefix{}
	for node, one := range p.byNode {
		ranges := one.ranges
		i := slices.IndexFunc(ranges, func(r netip.Prefix) bool { return to.Overlaps(r) && claim.OfNode(r, one.edge, subnets) == "" })
		if i >= 0 && (name == "" || node < name) {
			name, at = node, ranges[i]
		}
	}
	if name == "" {
		return ""
	}
	return fmt.Sprintf("%s, the pods of node %s", at, name)
}

func parseSubnet(text string) (netip.Prefix, error) {
	if strings.Contains(text, "/") {
		return netip.ParsePrefix(text)
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	return netip.PrefixFrom(a, a.BitLen()), nil
}
