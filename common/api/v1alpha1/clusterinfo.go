package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClusterInfos is the plural name of the resource; ClusterInfoName is the name of the one object of it.
const (
	ClusterInfos    = "clusterinfos"
	ClusterInfoName = "cluster"
)

// StatsLeaderLease is the Lease, in cloudcore's namespace, that one device holds: while it does, the cluster's statistics are published.
const StatsLeaderLease = "skerry-stats-leader"

// ClusterInfoSpec selects the candidates for the leader, and how often the statistics are
// collected.
type ClusterInfoSpec struct {
	// NodeSelector are labels that a device must have to be a candidate; left out, every device is one whose edgecore has modules.clusterStats enabled.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Interval is how often the statistics are collected while there is a leader.
	// +optional
	// +kubebuilder:default="1m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('2s') && duration(self) <= duration('24h')",message="interval must be 2s to 24h"
	Interval *metav1.Duration `json:"interval,omitempty"`
}

// ClusterAddress is an address of a node.
type ClusterAddress struct {
	Type    string `json:"type"`
	Address string `json:"address"`
}

// ClusterNode describes a node, from its Node object.
type ClusterNode struct {
	Name string `json:"name"`
	// Status is Ready, NotReady or Unknown.
	Status string `json:"status"`
	// +optional
	// +listType=atomic
	Roles []string `json:"roles,omitempty"`
	// +optional
	KubeletVersion string `json:"kubeletVersion,omitempty"`
	// +optional
	ContainerRuntimeVersion string `json:"containerRuntimeVersion,omitempty"`
	// +optional
	KernelVersion string `json:"kernelVersion,omitempty"`
	// +optional
	OSImage string `json:"osImage,omitempty"`
	// +optional
	// +listType=atomic
	Addresses []ClusterAddress `json:"addresses,omitempty"`
	// Schedulable reports whether the node takes new pods: it is not cordoned.
	Schedulable bool `json:"schedulable"`
	// LastTransition is the time of the last change of Status.
	// +optional
	LastTransition *metav1.Time `json:"lastTransition,omitempty"`
}

// ClusterPod is a pod of an application (EdgeApp).
type ClusterPod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	App       string `json:"app"`
	// +optional
	Node string `json:"node,omitempty"`
	// State is the pod's phase, or Terminating.
	State    string `json:"state"`
	Ready    bool   `json:"ready"`
	Restarts int32  `json:"restarts"`
}

// ClusterVM is a virtual machine that KubeVirt runs (VirtualMachineInstance).
type ClusterVM struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// +optional
	Node string `json:"node,omitempty"`
	// State is KubeVirt's phase.
	// +optional
	State string `json:"state,omitempty"`
	Ready bool   `json:"ready"`
	// Restarts of the containers of its virt-launcher pod.
	Restarts int32 `json:"restarts"`
}

// ClusterNamespace counts the pods of a namespace.
type ClusterNamespace struct {
	Name    string `json:"name"`
	Pods    int32  `json:"pods"`
	Running int32  `json:"running"`
}

// StorageHealth is the worst of all volumes.
// +kubebuilder:validation:Enum=Unsupported;Healthy;Degraded;Faulted;Unknown
type StorageHealth string

// The states of storage.
const (
	StorageUnsupported StorageHealth = "Unsupported" // the cluster has no Longhorn
	StorageHealthy     StorageHealth = "Healthy"
	StorageDegraded    StorageHealth = "Degraded"
	StorageFaulted     StorageHealth = "Faulted"
	StorageUnknown     StorageHealth = "Unknown"
)

// ClusterVolume is a volume of Longhorn.
type ClusterVolume struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// +optional
	State string `json:"state,omitempty"`
	// +optional
	Robustness string `json:"robustness,omitempty"`
	// +optional
	Node string `json:"node,omitempty"`
}

// ClusterStorage is how the cluster's storage is.
type ClusterStorage struct {
	Health StorageHealth `json:"health"`
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=500
	Volumes []ClusterVolume `json:"volumes,omitempty"`
}

// ClusterInfoCurrent is the condition that is True while a device is the leader; where it is False
// its message has the time since which the rest of the status is not renewed.
const ClusterInfoCurrent = "Current"

// ClusterInfoStatus is the cluster as the API server shows it.
type ClusterInfoStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Reporter is the device that holds the Lease of the leader; empty without a leader.
	// +optional
	Reporter string `json:"reporter,omitempty"`
	// CollectTime is when the statistics were collected, by cloudcore's clock.
	// +optional
	CollectTime *metav1.Time `json:"collectTime,omitempty"`
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	Nodes []ClusterNode `json:"nodes,omitempty"`
	// Pods are those of applications (EdgeApps).
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	Pods []ClusterPod `json:"pods,omitempty"`
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=500
	VMs []ClusterVM `json:"vms,omitempty"`
	// Namespaces count all pods of the cluster.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	Namespaces []ClusterNamespace `json:"namespaces,omitempty"`
	// +optional
	Storage *ClusterStorage `json:"storage,omitempty"`
	// Omitted is how many entries the lists above don't have because they are full.
	// +optional
	Omitted int32 `json:"omitted,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ClusterInfo has the statistics of the cluster, which are published while a device with a link is elected their reporter.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=clusterinfos,categories=skerry
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Reporter",type=string,JSONPath=`.status.reporter`
// +kubebuilder:printcolumn:name="Current",type=string,JSONPath=`.status.conditions[?(@.type=="Current")].status`
// +kubebuilder:printcolumn:name="Collected",type=date,JSONPath=`.status.collectTime`
// +kubebuilder:printcolumn:name="Storage",type=string,JSONPath=`.status.storage.health`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'cluster'",message="there is one ClusterInfo, and its name is cluster"
type ClusterInfo struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec ClusterInfoSpec `json:"spec,omitempty"`
	// +optional
	Status ClusterInfoStatus `json:"status,omitempty"`
}

// ClusterInfoList is a list of ClusterInfos.
// +kubebuilder:object:root=true
type ClusterInfoList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ClusterInfo `json:"items"`
}
