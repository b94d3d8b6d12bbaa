package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodePools is the plural name of the resource.
const NodePools = "nodepools"

// OpenYurtNodePoolLabel names the pool of a node as OpenYurt spells it. It counts where a node has no label of ours.
const OpenYurtNodePoolLabel = "apps.openyurt.io/nodepool"

// NodePoolType is the place of the pool's nodes.
// +kubebuilder:validation:Enum=Edge;Cloud
type NodePoolType string

// The types of pool.
const (
	NodePoolEdge  NodePoolType = "Edge"
	NodePoolCloud NodePoolType = "Cloud"
)

// AllocationPolicy selects the next Service's address among the free ones.
// +kubebuilder:validation:Enum=RoundRobin;Random;Lowest
type AllocationPolicy string

// The policies.
const (
	AllocateRoundRobin AllocationPolicy = "RoundRobin" // the one after the last that was given away: a freed address rests as long as possible
	AllocateRandom     AllocationPolicy = "Random"
	AllocateLowest     AllocationPolicy = "Lowest"
)

// AdvertisementMode is how a holder advertises itself to the nodes of a pool.
// +kubebuilder:validation:Enum=Multicast;Unicast
type AdvertisementMode string

// The modes.
const (
	AdvertiseMulticast AdvertisementMode = "Multicast" // to 224.0.0.18 and ff02::12, RFC 5798
	AdvertiseUnicast   AdvertisementMode = "Unicast"   // to each node of the pool by its own address
)

// PodNetworkMode is how pods of a pool's devices reach each other.
// +kubebuilder:validation:Enum=Auto;WireGuard;None
type PodNetworkMode string

// The modes of the pod network.
const (
	PodNetworkAuto      PodNetworkMode = "Auto"
	PodNetworkWireGuard PodNetworkMode = "WireGuard"
	PodNetworkNone      PodNetworkMode = "None"
)

// NodePoolSpec selects the nodes of the pool, and the addresses for Services there.
type NodePoolSpec struct {
	// Type is the place of the nodes: Edge or Cloud. Only pools of type Edge get virtual IPs.
	// +optional
	// +kubebuilder:default=Edge
	Type NodePoolType `json:"type,omitempty"`
	// Addresses are the pool of virtual IPs: single addresses (192.168.10.5), networks
	// (192.168.10.64/28, without their network and broadcast address) and ranges with both ends in
	// (192.168.10.100-192.168.10.200, 2002:2:2::1-2002:2:2::100). They must be free addresses of
	// the LAN that the pool's nodes share, known to no DHCP server, and must not overlap those of
	// another pool on the same network. Addresses of nodes are never given away.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=91
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a) || isCIDR(a) || (a.split('-').size() == 2 && a.split('-').all(e, isIP(e.trim()))))",message="each of addresses must be an IP address, a network such as 192.168.10.64/28, or a range such as 192.168.10.100-192.168.10.200"
	// +kubebuilder:validation:XValidation:rule="self.all(a, a.split('-').size() != 2 || !a.split('-').all(e, isIP(e.trim())) || ip(a.split('-')[0].trim()).family() == ip(a.split('-')[1].trim()).family())",message="both ends of a range must be of one family, both IPv4 or both IPv6"
	Addresses []string `json:"addresses,omitempty"`
	// AddressesOfProposal is "Addresses" with a capital letter, as an example of OpenYurt's proposal spells it. It means the same as addresses and is read in addition.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=91
	AddressesOfProposal []string `json:"Addresses,omitempty"`
	// AllowRequested lets a Service ask for an address outside of addresses, by the annotation
	// skerry.io/loadBalancerIP-POOL. The address is then added to addresses and goes again with the
	// Service. Off by default: otherwise everyone who may create a Service chooses any address of
	// the LAN. Addresses of nodes, of cloudcore, kube-apiserver, Services and pods are never given.
	// +optional
	AllowRequested bool `json:"allowRequested,omitempty"`
	// Allocation selects the next Service's address among the free ones: RoundRobin, Random or
	// Lowest.
	// +optional
	// +kubebuilder:default=RoundRobin
	Allocation AllocationPolicy `json:"allocation,omitempty"`
	// Network names the LAN that the pool's nodes share. Pools on one network must not overlap, and
	// share the 255 numbers that VRRP has for each family. Pools on different networks are
	// independent and may even use the same addresses. Set it where pools are at different places;
	// pools that leave it out are taken to be on one network.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="network can't be changed: virtual IPs are named after it; make another pool"
	Network string `json:"network,omitempty"`
	// Interface is the network interface of the nodes that virtual IPs are on, such as eth1. Left
	// out, each node takes the one whose own network the address is in. A node without an interface
	// on the address's network does not take part.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[^\s/:]{1,15}$`
	Interface string `json:"interface,omitempty"`
	// NodeSelector selects the nodes of the pool by their labels. Left out: those whose label
	// skerry.io/node-pool (or apps.openyurt.io/nodepool) has the pool's name as its value.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// PreferredNode is the node that holds the pool's virtual IPs whenever it can: it takes them back when it returns. Left out, a virtual IP stays where it is for
	// as long as its holder is well. A Service may name another one by the annotation skerry.io/preferredNode-POOL.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PreferredNode string `json:"preferredNode,omitempty"`
	// PodSubnets are the ranges for the pods of the pool's devices, such as 10.96.0.0/16: a /24, or
	// a /64 of IPv6, for each device without a range from the cluster. They must not overlap
	// Services, the LAN or addresses of nodes. Pools of different networks may have the same ones:
	// devices of different sites never meet.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="self.all(s, isCIDR(s) && cidr(s) == cidr(s).masked() && (cidr(s).ip().family() == 4 ? (cidr(s).prefixLength() >= 8 && cidr(s).prefixLength() <= 24) : (cidr(s).prefixLength() >= 40 && cidr(s).prefixLength() <= 64)))",message="each of podSubnets must be a network without bits behind its mask: of IPv4 between /8 and /24, of IPv6 between /40 and /64"
	// +kubebuilder:validation:XValidation:rule="self.all(s, self.all(o, o == s || (!cidr(s).containsCIDR(o) && !cidr(o).containsCIDR(s))))",message="podSubnets must not overlap each other"
	PodSubnets []string `json:"podSubnets,omitempty"`
	// PodNetwork is how pods of the pool's devices reach each other: Auto (by routes, and by
	// WireGuard where a device is not on the same LAN), WireGuard (always), or None: another CNI
	// plugin makes the pod network, and Skerry does not touch it.
	// +optional
	// +kubebuilder:default=Auto
	PodNetwork PodNetworkMode `json:"podNetwork,omitempty"`
	// Reachable names other NodePools that the pool's devices reach; their Services may then use
	// endpoints there.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=48
	Reachable []string `json:"reachable,omitempty"`
	// ReservedVRIDs are numbers of VRRP that others on the network use, such as routers or a
	// keepalived of yours.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=255
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=255
	ReservedVRIDs []int32 `json:"reservedVRIDs,omitempty"`
	// Advertisements is how a holder advertises itself: Multicast, or Unicast to each node of the
	// pool, for networks that filter multicast (Wi-Fi, virtual networks of clouds). Where two nodes
	// hold one address since multicast does not reach them, Unicast is used automatically.
	// +optional
	// +kubebuilder:default=Multicast
	Advertisements AdvertisementMode `json:"advertisements,omitempty"`
	// AdvertisementInterval is the time between two signs of life of a holder, 100ms to 40s in steps of 10ms. A holder that dies is replaced after somewhat more than
	// three of them.
	// +optional
	// +kubebuilder:default="1s"
	AdvertisementInterval *metav1.Duration `json:"advertisementInterval,omitempty"`
}

// The conditions of a NodePool.
const (
	PoolAddressesValid = "AddressesValid"    // every entry of addresses can be used
	PoolExhausted      = "Exhausted"         // a Service waits: no address is free
	PoolOverlap        = "Overlap"           // addresses of an older pool on the same network overlap
	PoolSharedNetwork  = "SharedNetwork"     // nodes have the pool's LAN and that of another network on one interface
	PoolPodSubnetsBad  = "PodSubnetsInvalid" // an entry of podSubnets overlaps a range in use; devices get no range of it
	// PoolPodCIDRsRefused: devices claim ranges for their pods that they were not given; no other
	// device has a route for them.
	PoolPodCIDRsRefused = "PodCIDRsRefused"
	PoolTooManyDevices  = "TooManyDevices" // the pool has more devices than a site may have: they don't speak to each other
)

// ForeignVRID is a number of VRRP that a router uses which is no node of the pool.
type ForeignVRID struct {
	VRID int32 `json:"vrid"`
	// Since is when it was believed.
	Since metav1.Time `json:"since"`
	// Last is the time of its last advertisement, to the hour.
	Last metav1.Time `json:"last"`
}

// NodePoolStatus is the observed state of the pool's addresses.
type NodePoolStatus struct {
	// ObservedGeneration is the metadata.generation that the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Used is how many addresses virtual IPs have, those included that are being released.
	// +optional
	Used int64 `json:"used"`
	// Free is how many more can be given away.
	// +optional
	Free int64 `json:"free"`
	// Nodes is how many nodes are in the pool.
	// +optional
	Nodes int32 `json:"nodes"`
	// LastAllocated are the addresses given away last, one a family: RoundRobin continues after
	// them.
	// +optional
	// +listType=atomic
	LastAllocated []string `json:"lastAllocated,omitempty"`
	// ForeignVRIDs are numbers of VRRP that other routers on the LAN use. No virtual IP of the
	// network gets them until they have been unused for a day. A number counts if two nodes report
	// it, or the only one that could hold the address.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=255
	ForeignVRIDs []ForeignVRID `json:"foreignVRIDs,omitempty"`
	// Conditions: AddressesValid, Exhausted, Overlap, SharedNetwork.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NodePool is a group of nodes that share a LAN, and the addresses of that LAN that Services get there as virtual IPs. A Service of class skerry.io/vip chooses pools
// by the labels of the NodePool objects.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=np,categories=skerry
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Used",type=integer,JSONPath=`.status.used`,description="addresses that virtual IPs have"
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=`.status.free`,description="addresses that can be given away"
// +kubebuilder:printcolumn:name="Valid",type=string,JSONPath=`.status.conditions[?(@.type=="AddressesValid")].status`
// +kubebuilder:printcolumn:name="Network",type=string,JSONPath=`.spec.network`,priority=1
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.spec.addresses`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="has(self.spec.network) == has(oldSelf.spec.network)",message="network can't be set or removed later: virtual IPs are named after it; make another pool"
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 48",message="the name must not be longer than 48 characters: it becomes part of annotations' names"
type NodePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec selects the nodes of the pool, and the addresses for Services there.
	Spec NodePoolSpec `json:"spec"`
	// Status is the observed state of the pool's addresses.
	// +optional
	Status NodePoolStatus `json:"status,omitempty"`
}

// NodePoolList is a list of NodePools.
// +kubebuilder:object:root=true
type NodePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodePool `json:"items"`
}
