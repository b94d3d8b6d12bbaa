package v1alpha1

// Labels of Nodes.
const (
	// EdgeLabel and EdgeOwnLabel mark the nodes that edgecore runs on, either of them; their values do not matter. A node registers with the second; the role, which
	// no node may give itself, follows (manifests/cloudcore/role.yaml).
	EdgeLabel    = "node-role.kubernetes.io/edge"
	EdgeOwnLabel = "skerry.io/edge"
	// NodePoolLabel names the pool that a node belongs to.
	NodePoolLabel = "skerry.io/node-pool"
	// AutonomyLabel with the value "false" lets pods leave a disconnected device, as from any node.
	AutonomyLabel = "skerry.io/autonomy"
)

// Annotations of Nodes.
const (
	// LANAddressesAnnotation has the addresses of a device on its networks, with their lengths, such as 192.168.1.7/24,10.0.0.7/8. The device writes it; the other
	// devices of its site look for it there.
	LANAddressesAnnotation = "skerry.io/lan-addresses"
	// PodCIDROfferAnnotation has the ranges, one a family, that cloudcore offers to a device for its pods. It becomes spec.podCIDRs when the device writes that.
	PodCIDROfferAnnotation = "skerry.io/pod-cidr-offer"
	// LostSettingsAnnotation, with any value, confirms that a Node that was deleted and came back
	// is complete: the settings that it lost (its labels, taints, cordon) are not reported any more.
	LostSettingsAnnotation = "skerry.io/lost-settings"
)
