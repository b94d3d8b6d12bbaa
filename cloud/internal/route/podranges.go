package route

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/skerry-io/skerry/cloud/internal/kube"
)

// podRanges are the ranges of every node's pods. A device knows its own alone. Its methods may be
// called by many goroutines at once; its size is that of the cluster.
type podRanges struct {
	mu     sync.Mutex
	byNode map[string][]netip.Prefix
}

// update takes a change of a Node in, and reports whether it changed a range. A range is given once
// and stays: only a Node of which none is known is decoded.
func (p *podRanges) update(old, now *kube.Object) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byNode == nil {
		p.byNode = map[string][]netip.Prefix{}
	}
	if now == nil || old != nil && old.UID != now.UID {
		if old != nil && p.byNode[old.Name] != nil {
			delete(p.byNode, old.Name)
			changed = true
		}
	}
	if now == nil || p.byNode[now.Name] != nil {
		return changed
	}
	ranges := rangesOf(now)
	if len(ranges) > 0 {
		p.byNode[now.Name] = ranges
	}
	return changed || len(ranges) > 0
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

// overlapped names the first range that a subnet overlaps, and its node; "" for none.
func (p *podRanges) overlapped(subnet string) string {
	to, err := parseSubnet(subnet)
	if err != nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	name, at := "", netip.Prefix{}
	for node, ranges := range p.byNode {
		i := slices.IndexFunc(ranges, to.Overlaps)
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
