package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// VirtualIPs is the plural name of the resource.
const VirtualIPs = "virtualips"

// VirtualIPFinalizer keeps a VirtualIP until its nodes have dropped the address, or long enough for those that can't be asked.
const VirtualIPFinalizer = "skerry.io/virtual-ip"

// How a Service asks for virtual IPs: by its class and by annotations.
const (
	VIPClass                = "skerry.io/vip"
	VIPPoolSelector         = "skerry.io/nodepool-labelselector" // key1=val1,key2=val2 of NodePools
	VIPAddressPrefix        = "skerry.io/loadBalancerIP-"        // and the pool's name: the address, one a family
	VIPPreferredPrefix      = "skerry.io/preferredNode-"         // and the pool's name: the node's
	VIPAllocated            = "skerry.io/Allocated"              // condition of the Service
	OpenYurtVIPClass        = "service.openyurt.io/vip"
	OpenYurtVIPPoolSelector = "service.openyurt.io/nodepool-labelselector"
	OpenYurtVIPAddress      = "service.openyurt.io/loadBalancerIP-"
)

// Labels of VirtualIPs.
const (
	// VIPPoolLabel names the pool.
	VIPPoolLabel = NodePoolLabel
	// VIPNodeLabelPrefix, with a digest of a node's name behind it, marks the VirtualIPs that concern the node, so that a node asks for these alone.
	VIPNodeLabelPrefix = "node.vip.skerry.io/"
)

// VirtualIPService is the Service that a virtual IP belongs to.
type VirtualIPService struct {
	// Namespace of the Service.
	Namespace string `json:"namespace"`
	// Name of the Service.
	Name string `json:"name"`
	// UID distinguishes the Service from a later one of the same name.
	UID types.UID `json:"uid"`
}

// VirtualIPPort is a port that is served at the address.
type VirtualIPPort struct {
	// Name of the port in the Service.
	// +optional
	Name string `json:"name,omitempty"`
	// Protocol is TCP, UDP or SCTP.
	Protocol corev1.Protocol `json:"protocol"`
	// Port that clients use.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// TargetPort is the pods' port, by number or name.
	TargetPort intstr.IntOrString `json:"targetPort"`
}

// VirtualIPNode is a node that may hold the address.
type VirtualIPNode struct {
	// Name of the node.
	Name string `json:"name"`
	// Priority in the election, 1 to 254; of the nodes with a ready pod the highest wins.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=254
	Priority int32 `json:"priority"`
	// Address is the node's own on the LAN, as it reported: where its advertisements come from.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	Address string `json:"address,omitempty"`
	// HardwareAddress is that of the node's interface on the LAN, as it reported. It distinguishes the
	// pool's nodes from other routers that speak VRRP.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	HardwareAddress string `json:"hardwareAddress,omitempty"`
	// Ready is true if the node has reported to hold the address or to be able to take it.
	// +optional
	Ready bool `json:"ready,omitempty"`
}

// VirtualIPSpec is all that a node needs to serve the address without the cloud. Only the cloud
// writes it.
type VirtualIPSpec struct {
	// Address is the virtual IP.
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="address can't be changed: the object is named after it"
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="address must be an IP address"
	Address string `json:"address"`
	// Pool is the NodePool that the address serves.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="pool can't be changed: release the address and take another"
	Pool string `json:"pool"`
	// Network is the pool's.
	// +optional
	Network string `json:"network,omitempty"`
	// Interface is the pool's.
	// +optional
	Interface string `json:"interface,omitempty"`
	// Service is the Service of the address.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="service can't be changed: release the address and take another"
	Service VirtualIPService `json:"service"`
	// Selector chooses the Service's pods, in its namespace.
	// +optional
	Selector map[string]string `json:"selector,omitempty"`
	// Ports are the Service's.
	// +optional
	// +listType=atomic
	Ports []VirtualIPPort `json:"ports,omitempty"`
	// PublishNotReady is the Service's publishNotReadyAddresses: pods count also while they are not ready.
	// +optional
	PublishNotReady bool `json:"publishNotReady,omitempty"`
	// KeepSource leaves clients' addresses as they are (externalTrafficPolicy Local); otherwise pods see the node's.
	// +optional
	KeepSource bool `json:"keepSource,omitempty"`
	// SourceRanges are the networks whose clients are served (loadBalancerSourceRanges); empty
	// means all.
	// +optional
	// +listType=atomic
	SourceRanges []string `json:"sourceRanges,omitempty"`
	// AffinitySeconds is for how long a client's connections go to the pod that its last one went to
	// (sessionAffinity ClientIP); 0 means that each connection goes to the next pod.
	// +optional
	AffinitySeconds int32 `json:"affinitySeconds,omitempty"`
	// VRID is the number of the election, VRRP's virtual router identifier: one for each address of a family on a network, but for those that share an election.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=255
	VRID int32 `json:"vrid"`
	// SharesElectionOf names the VirtualIP whose election this address follows: both serve the same
	// pods on the same nodes, and there were no numbers left. Empty: the address has its own.
	// +optional
	SharesElectionOf string `json:"sharesElectionOf,omitempty"`
	// Unicast has holders advertise themselves to each node's address instead of by multicast.
	// +optional
	Unicast bool `json:"unicast,omitempty"`
	// AdvertisementInterval is the pool's.
	// +optional
	AdvertisementInterval metav1.Duration `json:"advertisementInterval,omitempty"`
	// Nodes are those that may hold the address.
	// +optional
	// +listType=map
	// +listMapKey=name
	Nodes []VirtualIPNode `json:"nodes,omitempty"`
	// PreferredNode takes the address back when it returns.
	// +optional
	PreferredNode string `json:"preferredNode,omitempty"`
	// Elected is true once some node has held the address: the first election, which the highest
	// priority wins whichever node started first, is over.
	// +optional
	Elected bool `json:"elected,omitempty"`
	// AddedToPool is true where the address was asked for, was outside of the pool's ranges, and
	// was added to them; it is removed again with this object.
	// +optional
	AddedToPool bool `json:"addedToPool,omitempty"`
}

// VirtualIPState is a node's role for an address.
// +kubebuilder:validation:Enum=Holder;Backup;NotReady;Fault;Released
type VirtualIPState string

// The states.
const (
	VIPHolder   VirtualIPState = "Holder"   // has the address
	VIPBackup   VirtualIPState = "Backup"   // ready to take it
	VIPNotReady VirtualIPState = "NotReady" // has no ready pod of the Service, or is under maintenance
	VIPFault    VirtualIPState = "Fault"    // can't take part; the message has the reason
	VIPReleased VirtualIPState = "Released" // has dropped it for good
)

// VirtualIPNodeStatus is one node's report.
type VirtualIPNodeStatus struct {
	// Name of the node.
	Name string `json:"name"`
	// State is the node's role for the address.
	State VirtualIPState `json:"state"`
	// Priority that the node takes part with.
	// +optional
	Priority int32 `json:"priority,omitempty"`
	// ReadyEndpoints is how many ready pods of the Service the node has.
	// +optional
	ReadyEndpoints int32 `json:"readyEndpoints"`
	// Since is when the state began, by the node's clock.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// Programmed is true if the node's kernel has the address's rules.
	// +optional
	Programmed bool `json:"programmed,omitempty"`
	// Interface is the node's interface on the LAN, and Address its own address there with the length
	// of the network, such as 192.168.10.1/24.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	Interface string `json:"interface,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=49
	Address string `json:"address,omitempty"`
	// HardwareAddress is that of the interface.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	HardwareAddress string `json:"hardwareAddress,omitempty"`
	// ForeignRouter is the address of a VRRP router that is no node of the pool and uses the address's
	// VRID, which ForeignVRID repeats: the address may have another one by now.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	ForeignRouter string `json:"foreignRouter,omitempty"`
	// +optional
	ForeignVRID int32 `json:"foreignVRID,omitempty"`
	// DuplicateOf is the hardware address of another host on the LAN that has the address and is no
	// node of the pool. The node does not claim the address while that host has it.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	DuplicateOf string `json:"duplicateOf,omitempty"`
	// Message describes the failure in a sentence.
	// +optional
	Message string `json:"message,omitempty"`
}

// The conditions of a VirtualIP.
const (
	VIPConditionAllocated  = "Allocated"        // the Service has the address
	VIPConditionProgrammed = "Programmed"       // the nodes' kernels have their rules
	VIPConditionAnnounced  = "Announced"        // a node holds the address
	VIPConditionOutOfRange = "OutOfRange"       // the pool's ranges don't have it any more
	VIPConditionDuplicate  = "DuplicateAddress" // another host on the LAN has the address, and is no node of the pool
	VIPConditionVRID       = "VRIDConflict"     // a VRRP router on the LAN that is no node of the pool uses the number
	VIPConditionHolders    = "MultipleHolders"  // more than one node holds the address
)

// VirtualIPStatus is the observed state of a VirtualIP.
type VirtualIPStatus struct {
	// Holder is the node that has the address. More than one, separated by commas, don't receive
	// each other's advertisements.
	// +optional
	Holder string `json:"holder,omitempty"`
	// ReadyNodes is how many nodes have the address or could take it now.
	// +optional
	ReadyNodes int32 `json:"readyNodes"`
	// Nodes are the reports.
	// +optional
	// +listType=map
	// +listMapKey=name
	Nodes []VirtualIPNodeStatus `json:"nodes,omitempty"`
	// Conditions: Allocated, Programmed, Announced, OutOfRange, DuplicateAddress, VRIDConflict, MultipleHolders.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// VirtualIP is one address that a Service has in one pool. The cloud makes it; it is named after the address, so that making it is the claim. The pool's nodes elect among
// themselves who holds the address.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=vip,categories=skerry
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.spec.address`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.pool`
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.service.namespace`
// +kubebuilder:printcolumn:name="Service",type=string,JSONPath=`.spec.service.name`
// +kubebuilder:printcolumn:name="Holder",type=string,JSONPath=`.status.holder`
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.readyNodes`,description="nodes that have the address or could take it now"
// +kubebuilder:printcolumn:name="Programmed",type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].status`,priority=1
// +kubebuilder:printcolumn:name="Network",type=string,JSONPath=`.spec.network`,priority=1
// +kubebuilder:printcolumn:name="VRID",type=integer,JSONPath=`.spec.vrid`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type VirtualIP struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is all that a node needs to serve the address.
	Spec VirtualIPSpec `json:"spec"`
	// Status is the observed state.
	// +optional
	Status VirtualIPStatus `json:"status,omitempty"`
}

// VirtualIPList is a list of VirtualIPs.
// +kubebuilder:object:root=true
type VirtualIPList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VirtualIP `json:"items"`
}
