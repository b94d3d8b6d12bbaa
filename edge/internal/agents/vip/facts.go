package vip

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	addresses "github.com/skerry-io/skerry/common/claim" // claim is another thing here
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/balance"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/acd"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/keepalived"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
)

// Facts are the inputs of Roles, as known to a node.
type Facts struct {
	Node       string
	VIPs       []*v1alpha1.VirtualIP
	Pods       []*corev1.Pod
	Interfaces []netif.Interface
	// Guards are networks whose addresses the node never claims.
	Guards []Guard
	// PreBootContainers are IDs of containers that ran before the device booted: the store may
	// still have them as ready.
	PreBootContainers map[string]bool
	// Maintenance: hand all addresses over. Draining: hand over the addresses that another node can
	// take.
	Maintenance, Draining bool
	// Untaken names the VirtualIPs that were handed over and that no other node took.
	Untaken map[string]bool
	// New names the VirtualIPs whose first election this is: the highest priority shall win it,
	// whichever node was first.
	New map[string]bool
	// Withheld gives the reason an address is not claimed although it could be: it cut the node
	// off.
	Withheld map[types.UID]string
	// Adverts are the latest advertisements of VRRP that other hosts sent.
	Adverts []acd.Advert
}

// Role is the node's desired state for one address.
type Role struct {
	VIP      *v1alpha1.VirtualIP
	Instance keepalived.Instance // of the VirtualIP whose election it is, where it is shared
	Service  balance.Service
	// Own is the node's own address on the network, and HardwareAddress that of the interface.
	Own             netip.Prefix
	HardwareAddress string
	// Ready: the node may hold the address. Endpoints is how many pods are ready here.
	Ready     bool
	Endpoints int
	// HandingOver: it is not Ready only because a drain hands the address over.
	HandingOver bool
	// Fault is why the node can't take part, in a sentence.
	Fault string
	// Stranger is the hardware address of a router that advertises the address by VRRP and is
	// no node of the pool, and ForeignRouter the address of one that uses the number for
	// other addresses.
	Stranger      string
	ForeignRouter string
	// Duplicate is the hardware address of another host that has the address. Unasked is the reason
	// why that could not be determined, and Waiting means that the probe is running. In all three
	// cases the node is not Ready although its pods are.
	Duplicate string
	Unasked   string
	Waiting   bool
}

// defaultAdvert is VRRP's own default, RFC 5798 section 5.2.7.
const defaultAdvert = time.Second

func instanceName(vip string) string { return "vip_" + vip }

// Guard is a network whose addresses are others'.
type Guard = addresses.Guard
