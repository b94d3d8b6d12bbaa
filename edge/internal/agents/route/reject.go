package route

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
)

// rejection is why a route is not as wanted: the reason and the message of its status.
type rejection struct{ reason, message string }

func reject(reason, format string, args ...any) *rejection {
	return &rejection{reason, fmt.Sprintf(format, args...)}
}

// fine reports whether a reason is that of a route as it should be.
func fine(reason string) bool {
	return reason == v1alpha1.RouteApplied || reason == v1alpha1.RouteDryRun
}

func gateways(hops []netroute.Hop) string {
	text := ""
	for _, h := range hops {
		if text != "" {
			text += ", "
		}
		if h.Gateway.IsValid() {
			text += h.Gateway.String()
		} else {
			text += h.Interface
		}
	}
	return text
}

// resolved is a route as the status shows it, hops in order.
func resolved(r netroute.Route) *v1alpha1.ResolvedRoute {
	out := &v1alpha1.ResolvedRoute{Subnet: r.Prefix.String(), Table: int64(r.Table), Metric: int64(r.Metric), MTU: int32(r.MTU)}
	switch r.Type {
	case netroute.Blackhole:
		out.Type = v1alpha1.RouteBlackhole
	case netroute.Unreachable:
		out.Type = v1alpha1.RouteUnreachable
	case netroute.Prohibit:
		out.Type = v1alpha1.RouteProhibit
	default:
		out.Type = v1alpha1.RouteUnicast
	}
	if r.Source.IsValid() {
		out.PreferredSource = r.Source.String()
	}
	for _, h := range r.Hops {
		hop := v1alpha1.ResolvedHop{Interface: h.Interface, Weight: int32(max(h.Weight, 1)), OnLink: h.OnLink}
		if h.Gateway.IsValid() {
			hop.Gateway = h.Gateway.String()
		}
		out.NextHops = append(out.NextHops, hop)
	}
	slices.SortFunc(out.NextHops, func(a, b v1alpha1.ResolvedHop) int {
		return cmp.Or(cmp.Compare(a.Gateway, b.Gateway), cmp.Compare(a.Interface, b.Interface))
	})
	return out
}
