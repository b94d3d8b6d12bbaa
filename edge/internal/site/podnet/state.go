package podnet

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/common/claim"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/masquerade"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lan"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/wireguard"
	"github.com/skerry-io/skerry/edge/internal/site/contact"
	"github.com/skerry-io/skerry/edge/internal/site/peers"
)

// ConditionType is the Node's condition for the state of the pod network.
const ConditionType corev1.NodeConditionType = "SkerryPodNetwork"

// The reasons of the condition. All but Ready come with False, but for Foreign, which is a choice.
const (
	ReasonReady     = "Ready"
	ReasonForeign   = "Foreign"         // another CNI plugin makes the pod network
	ReasonOff       = "Off"             // podNetwork: None
	ReasonNoPodCIDR = "NoPodCIDR"       // this device has no range
	ReasonConflict  = "PodCIDRConflict" // another device of the site has this one's range
	ReasonNotOnLink = "NotOnLink"       // a device of the site is on no network of this one, and WireGuard can't be used
	ReasonOldRange  = "PodsInOldRange"  // pods began before the Node had its range: other devices don't reach them
	ReasonNoTunnel  = "NoWireGuard"     // the NodePool requires encryption for all of it, which is impossible
)

// State is the input of a plan.
type State struct {
	Node     *corev1.Node
	Site     *peers.Site // nil: not known yet
	Self     string
	Foreign  []string // CNI configurations of others
	Networks []lan.Network
	// Subnets are the ranges of which this device takes one itself where the cluster gives it no
	// range; Current is its range so far, Taken are the destinations of routes, except those to its
	// own pods.
	Subnets []netip.Prefix
	Current netip.Prefix
	Taken   []netip.Prefix
	// Made are our routes as the kernel has them, also those of an edgecore before this one.
	Made []netroute.Route
	// Pods are the addresses of this device's pods, as far as the CNI configuration here
	// made their network.
	Pods []netip.Addr
	// Guards are the networks that no other device's range may touch.
	Guards claim.Guards
	// Withheld gives the reason a claim (see Plan) must not be applied now; nil: all may be.
	Withheld func(claim string) string
	// Waited is true once the cluster has had time to give it one.
	Waited bool
	// At is where a device is connected now; the zero value where it is not.
	At func(node string) netip.Addr
	// Said returns the addresses that a device currently reports of itself; empty without a report.
	Said func(node string) []netip.Addr
	// Tunnels: this kernel has WireGuard. Tunnel is a device's, the zero value if it has not
	// reported one; TunnelPort is of this one's.
	Tunnels    bool
	Tunnel     func(node string) contact.Tunnel
	TunnelPort int
}

// Plan is the wanted state.
type Plan struct {
	HandsOff bool
	Conflist []byte // nil: the present one stays
	// Routes are all of ours; nil: the other members of the site are unknown, and both the routes
	// and the tunnel stay unchanged.
	Routes map[netroute.Key]netroute.Route
	// Claims are the other devices' ranges, as "DEVICE RANGE", and Standing those of them that have
	// a route.
	Claims, Standing []string
	Rules            masquerade.Rules
	Tunnel           *wireguard.Config // nil without one
	Reason           string
	Message          string
	PodCIDRs         []string // to be written to the Node; nil: no write
	Addresses        string   // of this device, as the annotation has them
}
