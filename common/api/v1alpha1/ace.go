package v1alpha1

// Annotations by which a Service of the namespace cattle-system opts in to the Authorized Cluster
// Endpoint: only these networks reach port 6443 of a node, only on this interface. Without both the
// port is closed.
const (
	ACESourcesAnnotation   = "skerry.io/ace-source-cidrs" // networks, separated by commas
	ACEInterfaceAnnotation = "skerry.io/ace-interface"
)

// EthernetAnnotation on a pod asks for network ports of its device: names of interfaces, separated
// by commas.
const EthernetAnnotation = "skerry.io/ethernet"
