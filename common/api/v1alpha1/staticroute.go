package v1alpha1

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// StaticRoutes is the plural name of the resource.
const StaticRoutes = "staticroutes"

// StaticRouteFinalizer keeps a StaticRoute until every node has taken its route away.
const StaticRouteFinalizer = "skerry.io/static-route"

// RouteType is how the kernel treats packets for the subnet.
// +kubebuilder:validation:Enum=Unicast;Blackhole;Unreachable;Prohibit
type RouteType string

// The types of route, as in ip-route(8).
const (
	RouteUnicast     RouteType = "Unicast"     // to the next hop
	RouteBlackhole   RouteType = "Blackhole"   // dropped without a word
	RouteUnreachable RouteType = "Unreachable" // dropped, the sender receives ICMP "host unreachable"
	RouteProhibit    RouteType = "Prohibit"    // dropped, the sender receives ICMP "administratively prohibited"
)

// DriftPolicy is how a node reacts when another process changed or removed its route.
// +kubebuilder:validation:Enum=Repair;Report
type DriftPolicy string

// The drift policies.
const (
	DriftRepair DriftPolicy = "Repair"
	DriftReport DriftPolicy = "Report"
)

// ConflictPolicy is how a node reacts when another process' route for the same table, subnet and
// metric is there already.
// +kubebuilder:validation:Enum=Fail;Adopt
type ConflictPolicy string

// The conflict policies.
const (
	ConflictFail  ConflictPolicy = "Fail"
	ConflictAdopt ConflictPolicy = "Adopt"
)

// NextHop is one way to the subnet.
// +kubebuilder:validation:XValidation:rule="has(self.gateway) || has(self.interface)",message="a next hop needs a gateway, an interface, or both"
// +kubebuilder:validation:XValidation:rule="!has(self.gateway) || !isIP(self.gateway) || !ip(self.gateway).isLinkLocalUnicast() || has(self.interface)",message="a link-local gateway (fe80::/10 or 169.254.0.0/16) means nothing without the interface it is on: set interface too"
// +kubebuilder:validation:XValidation:rule="!has(self.onLink) || !self.onLink || (has(self.gateway) && has(self.interface))",message="onLink needs both gateway and interface"
type NextHop struct {
	// Gateway is the IP address of the router to send to. It must be on a network of the node (see onLink). Left out, packets go to the interface directly.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self) && !ip(self).isUnspecified() && !ip(self).isLoopback() && (ip(self).family() == 4 ? !cidr('224.0.0.0/3').containsIP(self) : !cidr('ff00::/8').containsIP(self))",messageExpression="'gateway must be the IP address of a router, such as 192.168.1.1 or fe80::1; ' + self + ' is not'"
	Gateway string `json:"gateway,omitempty"`
	// Interface is the name of the node's network interface to send through, such as eth1. Left out, the kernel chooses the one that the gateway is on.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[^\s/:]{1,15}$`
	Interface string `json:"interface,omitempty"`
	// Weight is the share of flows that takes this hop, relative to the other hops' weights.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=256
	Weight int32 `json:"weight,omitempty"`
	// OnLink treats the gateway as directly reachable on the interface although no address of the
	// interface is in the gateway's network.
	// +optional
	OnLink bool `json:"onLink,omitempty"`
}

// GatewayDetection configures how a node finds the gateway where the route names no gateway.
type GatewayDetection struct {
	// ProbeIP is an address of the subnet's family. The route uses the next hop that the node's
	// main table has for this address; routes made of StaticRoutes are ignored. No packet is sent
	// to it. Left out, it is 10.0.0.1 for IPv4 and fd00::1 for IPv6.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",messageExpression="'probeIP must be an IP address, such as 10.0.0.1; ' + self + ' is not'"
	ProbeIP string `json:"probeIP,omitempty"`
}

// StaticRouteSpec is the route that the selected nodes shall have. With neither gateway nor nextHops, a Unicast route takes the gateway that each node detects.
// +kubebuilder:validation:XValidation:rule="!has(self.gateway) || !has(self.nextHops) || size(self.nextHops) == 0",message="set either gateway or nextHops, not both"
// +kubebuilder:validation:XValidation:rule="self.type == 'Unicast' || (!has(self.gateway) && (!has(self.nextHops) || size(self.nextHops) == 0) && !has(self.gatewayDetection) && !has(self.preferredSource) && !has(self.mtu))",messageExpression="'a route of type ' + self.type + ' leads nowhere: leave out gateway, nextHops, gatewayDetection, preferredSource and mtu'"
// +kubebuilder:validation:XValidation:rule="!has(self.gateway) || !isIP(self.gateway) || !ip(self.gateway).isLinkLocalUnicast()",message="a link-local gateway (fe80::/10 or 169.254.0.0/16) means nothing without the interface it is on: write it under nextHops, with interface"
// +kubebuilder:validation:XValidation:rule="!has(self.gateway) || !isIP(self.gateway) || self.gateway.contains(':') == self.subnet.contains(':')",messageExpression="'subnet ' + self.subnet + ' and gateway ' + self.gateway + ' must be of one family, both IPv4 or both IPv6'"
// +kubebuilder:validation:XValidation:rule="!has(self.nextHops) || self.nextHops.all(h, !has(h.gateway) || h.gateway.contains(':') == self.subnet.contains(':'))",messageExpression="'the gateways of nextHops must be of the family of subnet ' + self.subnet"
// +kubebuilder:validation:XValidation:rule="!has(self.preferredSource) || self.preferredSource.contains(':') == self.subnet.contains(':')",messageExpression="'subnet ' + self.subnet + ' and preferredSource ' + self.preferredSource + ' must be of one family, both IPv4 or both IPv6'"
// +kubebuilder:validation:XValidation:rule="!has(self.gatewayDetection) || !has(self.gatewayDetection.probeIP) || self.gatewayDetection.probeIP.contains(':') == self.subnet.contains(':')",messageExpression="'subnet ' + self.subnet + ' and gatewayDetection.probeIP ' + self.gatewayDetection.probeIP + ' must be of one family, both IPv4 or both IPv6'"
// +kubebuilder:validation:XValidation:rule="!has(self.gatewayDetection) || (!has(self.gateway) && (!has(self.nextHops) || size(self.nextHops) == 0))",message="gatewayDetection is for routes without a gateway: leave out either it, or gateway and nextHops"
// +kubebuilder:validation:XValidation:rule="!has(self.mtu) || !self.subnet.contains(':') || self.mtu >= 1280",message="mtu must be at least 1280 for IPv6 (RFC 8200)"
type StaticRouteSpec struct {
	// Subnet is the destination: one IPv4 or IPv6 network in CIDR notation, or one address (the mask may be left out for a host).
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=49
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) || isIP(self)",messageExpression="'subnet must be a network such as 192.168.1.0/24 or 2001:db8::/64, or one IP address; ' + self + ' is neither'"
	// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || string(cidr(self).masked()) == self",messageExpression="'subnet ' + self + ' has bits set behind its mask, or is not written in the usual short form: write the network itself, such as 192.168.1.0/24 or 2001:db8::/64'"
	// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip.isCanonical(self)",messageExpression="'subnet ' + self + ' is not written in the usual form: in lower case and as short as possible, such as 2001:db8::1'"
	Subnet string `json:"subnet"`
	// Gateway is the single next hop: the IP address of a router on a network of the node. For several hops, or one with an interface, use nextHops.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self) && !ip(self).isUnspecified() && !ip(self).isLoopback() && (ip(self).family() == 4 ? !cidr('224.0.0.0/3').containsIP(self) : !cidr('ff00::/8').containsIP(self))",messageExpression="'gateway must be the IP address of a router, such as 192.168.1.1 or 2001:db8::1; ' + self + ' is not'"
	Gateway string `json:"gateway,omitempty"`
	// NextHops are the ways to the subnet. With more than one the kernel spreads flows over them by weight (ECMP).
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, (has(a.gateway) ? a.gateway : '') == (has(b.gateway) ? b.gateway : '') && (has(a.interface) ? a.interface : '') == (has(b.interface) ? b.interface : '')))",message="nextHops has the same gateway and interface twice: give one hop a greater weight instead"
	NextHops []NextHop `json:"nextHops,omitempty"`
	// Type is how the kernel treats packets for the subnet: Unicast forwards them; Blackhole drops
	// them silently; Unreachable and Prohibit drop them and notify the sender.
	// +optional
	// +kubebuilder:default=Unicast
	Type RouteType `json:"type,omitempty"`
	// Table is the number of the routing table. 254 is the main table. For any other the node needs
	// rules (ip-rule(8)) that select it; Skerry makes no rules.
	// +optional
	// +kubebuilder:default=254
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967295
	// +kubebuilder:validation:XValidation:rule="self != 255",message="table 255 (local) is the kernel's own"
	Table int64 `json:"table,omitempty"`
	// Metric orders routes for the same subnet in one table: the lowest wins. For IPv6, 0 means 1024, as the kernel has it.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4294967295
	Metric int64 `json:"metric,omitempty"`
	// PreferredSource is the address that the node's own packets to the subnet bear. It must be an address of the node.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",messageExpression="'preferredSource must be an IP address of the node; ' + self + ' is none'"
	PreferredSource string `json:"preferredSource,omitempty"`
	// MTU is the largest packet, in bytes, that is sent to the subnet. Left out, it is the interface's.
	// +optional
	// +kubebuilder:validation:Minimum=68
	// +kubebuilder:validation:Maximum=65535
	MTU int32 `json:"mtu,omitempty"`
	// NodeSelector selects the edge nodes that get the route by their labels. Empty or left out:
	// all edge nodes.
	// +optional
	NodeSelector *NodeSelector `json:"nodeSelector,omitempty"`
	// NodePool narrows the nodes to those of the NodePool of this name: those of its nodeSelector,
	// or, where it has no selector or does not exist, those with its name in the label
	// skerry.io/node-pool.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	NodePool string `json:"nodePool,omitempty"`
	// DriftPolicy is how a node reacts when another process changes or removes the route: Repair
	// puts it back, Report only reports it.
	// +optional
	// +kubebuilder:default=Repair
	DriftPolicy DriftPolicy `json:"driftPolicy,omitempty"`
	// OnConflict is how a node reacts when a route for the same table, subnet and metric is there
	// that Skerry didn't make: Fail keeps it and reports Conflict; Adopt replaces it. An adopted
	// route does not come back when the StaticRoute is deleted.
	// +optional
	// +kubebuilder:default=Fail
	OnConflict ConflictPolicy `json:"onConflict,omitempty"`
	// DryRun makes nodes check the route and report the changes without making them. A route that
	// is there already is removed.
	// +optional
	DryRun bool `json:"dryRun,omitempty"`
	// GatewayDetection configures how a node finds the gateway where the route names no gateway.
	// +optional
	GatewayDetection *GatewayDetection `json:"gatewayDetection,omitempty"`
}

// NodeSelector selects nodes by their labels, as Kubernetes' label selectors do. All of it must match; empty, it matches
// every edge node.
type NodeSelector struct {
	// MatchLabels are labels that the node must have.
	// +optional
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
	// MatchExpressions are requirements on labels of the node.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	MatchExpressions []NodeRequirement `json:"matchExpressions,omitempty"`
}

// NodeRequirement is a requirement on one label.
// +kubebuilder:validation:XValidation:rule="(self.operator == 'In' || self.operator == 'NotIn') == (has(self.values) && size(self.values) > 0)",messageExpression="self.operator == 'In' || self.operator == 'NotIn' ? 'operator ' + self.operator + ' needs values' : 'operator ' + self.operator + ' takes no values'"
type NodeRequirement struct {
	// Key is the label's key.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key"`
	// Operator: In and NotIn compare with values, Exists and DoesNotExist take no values.
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator metav1.LabelSelectorOperator `json:"operator"`
	// Values are those that the label is compared with.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Values []string `json:"values,omitempty"`
}

// Selector is the selector as Kubernetes' libraries have it; nil selects everything. An error names
// the part that a node older or newer than the CRD does not understand.
func (s *NodeSelector) Selector() (labels.Selector, error) {
	if s == nil {
		return labels.Everything(), nil
	}
	plain := &metav1.LabelSelector{MatchLabels: s.MatchLabels}
	for _, e := range s.MatchExpressions {
		plain.MatchExpressions = append(plain.MatchExpressions, metav1.LabelSelectorRequirement{Key: e.Key, Operator: e.Operator, Values: e.Values})
	}
	selector, err := metav1.LabelSelectorAsSelector(plain)
	if err != nil {
		return labels.Nothing(), fmt.Errorf("nodeSelector: %w", err)
	}
	return selector, nil
}

// ResolvedHop is one way to the subnet as it is on a node.
type ResolvedHop struct {
	// Gateway is the router; left out where packets go to the interface directly.
	// +optional
	Gateway string `json:"gateway,omitempty"`
	// Interface is the node's network interface.
	// +optional
	Interface string `json:"interface,omitempty"`
	// Weight is the hop's share of flows, relative to the other hops' weights.
	// +optional
	Weight int32 `json:"weight,omitempty"`
	// OnLink treats the gateway as directly reachable whatever the interface's addresses are.
	// +optional
	OnLink bool `json:"onLink,omitempty"`
}

// ResolvedRoute is the route as it is on a node, with everything that was left to the node filled in.
type ResolvedRoute struct {
	// Subnet is the destination, in CIDR notation.
	Subnet string `json:"subnet"`
	// Type is how the kernel treats packets for the subnet.
	Type RouteType `json:"type"`
	// NextHops are the ways to the subnet. Empty for types without next hops.
	// +optional
	// +listType=atomic
	NextHops []ResolvedHop `json:"nextHops,omitempty"`
	// Table is the number of the routing table.
	Table int64 `json:"table"`
	// Metric orders routes for the same subnet in one table.
	// +optional
	Metric int64 `json:"metric,omitempty"`
	// PreferredSource is the address that the node's own packets bear.
	// +optional
	PreferredSource string `json:"preferredSource,omitempty"`
	// MTU is the largest packet, in bytes, that is sent to the subnet.
	// +optional
	MTU int32 `json:"mtu,omitempty"`
}

// Reasons of a node's entry. Applied and DryRun are fine; every other one is the reason why the
// node does not have the route, or for how long it may keep it.
const (
	RouteApplied            = "Applied"            // the kernel has the route
	RouteDryRun             = "DryRun"             // it would be applied
	RouteConflict           = "Conflict"           // another StaticRoute, or a route that Skerry didn't make, has the same table, subnet and metric
	RouteProtected          = "Protected"          // the subnet overlaps one that must not be covered
	RouteGatewayUnreachable = "GatewayUnreachable" // the gateway is on no network of the node
	RouteNoGateway          = "NoGateway"          // no gateway was given or detected
	RouteInterfaceMissing   = "InterfaceMissing"   // the node has no interface of that name
	RouteInterfaceDown      = "InterfaceDown"      // the interface is down
	RouteSourceMissing      = "SourceMissing"      // preferredSource is not an address of the node
	RouteRefused            = "Refused"            // the kernel refuses the route for another reason
	RouteInvalid            = "Invalid"            // the spec makes no sense to this node
	RouteDrifted            = "Drifted"            // another process changed or removed the route, and driftPolicy is Report
	RouteDegraded           = "Degraded"           // the kernel has it, with a trouble that the message names
	RouteRolledBack         = "RolledBack"         // with the route the node lost its cloud or its gateway, so it took it back
	RouteRemoving           = "Removing"           // the route should go, and the kernel refuses to let it go
	RoutePending            = "Pending"            // the node is about to set it
)

// StaticRouteNode is one node's report of the route.
type StaticRouteNode struct {
	// Name is the node's.
	Name string `json:"name"`
	// State is the route with everything that the spec leaves to the node filled in.
	// +optional
	State *ResolvedRoute `json:"state,omitempty"`
	// ObservedGeneration is the metadata.generation that this entry is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Reason is one word for the result: Applied and DryRun are fine. docs/routes.md lists all of
	// them with remedies.
	Reason string `json:"reason"`
	// Message describes it in a sentence.
	// +optional
	Message string `json:"message,omitempty"`
	// Repairs is how often the node put the route back after another process had changed or removed it.
	// +optional
	Repairs int64 `json:"repairs,omitempty"`
	// LastChange is when the route, or the reason, last changed; by the node's clock.
	// +optional
	LastChange *metav1.Time `json:"lastChange,omitempty"`
}

// FineNodes names nodes that have the route as of one generation of the object.
type FineNodes struct {
	// ObservedGeneration is the metadata.generation that these nodes have.
	ObservedGeneration int64 `json:"observedGeneration"`
	// Names are the nodes'.
	// +listType=atomic
	Names []string `json:"names"`
}

// FailedNodes names nodes with the same failure.
type FailedNodes struct {
	// ObservedGeneration is the metadata.generation that they speak of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Reason is one word for it, as in a node's own report.
	Reason string `json:"reason"`
	// Names are the nodes'.
	// +listType=atomic
	Names []string `json:"names"`
}

// StaticRouteStatus merges the nodes' reports. Only the cloud writes it.
type StaticRouteStatus struct {
	// ObservedGeneration is the metadata.generation that desired and the conditions are about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Desired is how many nodes should have the route.
	// +optional
	Desired int32 `json:"desired"`
	// Applied is how many of them have it in the kernel, as of this generation; a rehearsal is in
	// no kernel.
	// +optional
	Applied int32 `json:"applied"`
	// Failed is the number of nodes that report a failure. A node that is neither applied nor
	// failed has not reported yet.
	// +optional
	Failed int32 `json:"failed"`
	// Gateway shows the next hops of the spec: gateways, or interfaces where there are no gateways;
	// "detected" where each node finds its own.
	// +optional
	Gateway string `json:"gateway,omitempty"`
	// Waiting names the first nodes that should have the route and have not reported since it was written: they may be offline.
	// +optional
	// +listType=atomic
	Waiting []string `json:"waiting,omitempty"`
	// Nodes are the reports. Above 200 nodes only those that are not fine are listed here, at most 200 of them, and those that are fine are named in fineNodes.
	// +optional
	// +listType=map
	// +listMapKey=name
	Nodes []StaticRouteNode `json:"nodes,omitempty"`
	// FineNodes names the nodes that are fine, where there are too many to list their reports.
	// +optional
	// +listType=atomic
	FineNodes []FineNodes `json:"fineNodes,omitempty"`
	// FailedNodes names the nodes that are not fine, where there are too many to list the reports of all.
	// +optional
	// +listType=atomic
	FailedNodes []FailedNodes `json:"failedNodes,omitempty"`
	// Conditions: Ready is True if every node that should have the route has it; Conflict if some
	// node could not take it because of another route.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// The conditions of a StaticRoute.
const (
	ConditionReady    = "Ready"
	ConditionConflict = "Conflict"
)

// StaticRoute is a route that edge nodes have in their kernel: after a reboot without the cloud, after it was removed by hand, and until the object is
// deleted. A route that would cut a node off is refused or taken back by the node.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=sroute,categories=skerry
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Subnet",type=string,JSONPath=`.spec.subnet`
// +kubebuilder:printcolumn:name="Gateway",type=string,JSONPath=`.status.gateway`
// +kubebuilder:printcolumn:name="Table",type=integer,JSONPath=`.spec.table`
// +kubebuilder:printcolumn:name="Applied",type=integer,JSONPath=`.status.applied`,description="nodes whose kernel has the route"
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.status.desired`,description="nodes that should have the route"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 200",message="the name must not be longer than 200 characters"
type StaticRoute struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the route that the selected nodes shall have.
	Spec StaticRouteSpec `json:"spec"`
	// Status merges the nodes' reports.
	// +optional
	Status StaticRouteStatus `json:"status,omitempty"`
}

// StaticRouteList is a list of StaticRoutes.
// +kubebuilder:object:root=true
type StaticRouteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []StaticRoute `json:"items"`
}
