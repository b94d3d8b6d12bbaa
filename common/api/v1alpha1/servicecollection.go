package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ServiceCollections is the plural name of the resource.
const ServiceCollections = "servicecollections"

// Reasons of a node's entry in a ServiceCollection.
const (
	CollectionApplied = "Applied" // the kernel marks connections to everything that is listed
	CollectionLeftOut = "LeftOut" // there are more entries than a node takes: the newest are left out
	CollectionInvalid = "Invalid" // an object makes no sense: the message names it; the rest is applied
	CollectionFailed  = "Failed"  // the kernel could not be brought in line
)

// ServiceCollectionNode is one node's collection.
type ServiceCollectionNode struct {
	// Name is the node's.
	Name string `json:"name"`
	// Reason is one word for how it is: Applied is fine.
	Reason string `json:"reason"`
	// Message describes it in a sentence.
	// +optional
	Message string `json:"message,omitempty"`
	// Services is how many ports of Services are collected.
	Services int32 `json:"services"`
	// Ingresses is how many paths of Ingresses are collected.
	Ingresses int32 `json:"ingresses"`
	// LeftOut is how many entries above the bound were left out, those of the newest objects.
	// +optional
	LeftOut int32 `json:"leftOut,omitempty"`
	// Rules is how many rules the kernel has for them, of both families.
	Rules int32 `json:"rules"`
	// Entries are the first of the collected entries, a line each. Left out where many nodes
	// report; `edgecore status -o json` on the device lists all.
	// +optional
	// +listType=atomic
	Entries []string `json:"entries,omitempty"`
}

// ServiceCollectionStatus merges the nodes' reports. Only the cloud writes it.
type ServiceCollectionStatus struct {
	// Reporting is how many nodes collect.
	// +optional
	Reporting int32 `json:"reporting"`
	// Applied is how many of them mark everything that is to be marked.
	// +optional
	Applied int32 `json:"applied"`
	// Nodes are the reports. Above 60 nodes their entries are left out, and above 500 those that are fine; of the others 500 are listed at most.
	// +optional
	// +listType=map
	// +listMapKey=name
	Nodes []ServiceCollectionNode `json:"nodes,omitempty"`
	// FineNodes names the nodes that are fine, where there are too many to list their reports.
	// +optional
	// +listType=atomic
	FineNodes []string `json:"fineNodes,omitempty"`
	// FailedNodes names the nodes that are not fine, where there are too many to list the reports of all.
	// +optional
	// +listType=atomic
	FailedNodes []FailedNodes `json:"failedNodes,omitempty"`
	// Conditions: Ready is True if every node that reports is fine; Complete if no node had to
	// leave entries out.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ConditionComplete is True if everything is collected.
const ConditionComplete = "Complete"

// ServiceCollection shows the Services and Ingresses that edge nodes collect, to mark connections
// to them (docs/services.md). Its spec is empty: nodes whose module marks is on report to every
// ServiceCollection there is; one is enough.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=svccol,categories=skerry
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Reporting",type=integer,JSONPath=`.status.reporting`,description="nodes that collect"
// +kubebuilder:printcolumn:name="Applied",type=integer,JSONPath=`.status.applied`,description="nodes that mark all of it"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Complete",type=string,JSONPath=`.status.conditions[?(@.type=="Complete")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ServiceCollection struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Status merges the nodes' reports.
	// +optional
	Status ServiceCollectionStatus `json:"status,omitempty"`
}

// ServiceCollectionList is a list of ServiceCollections.
// +kubebuilder:object:root=true
type ServiceCollectionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ServiceCollection `json:"items"`
}
