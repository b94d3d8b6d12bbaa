package v1alpha1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeOperations is the plural name of the resource.
const NodeOperations = "nodeoperations"

// CordonAnnotation on a Node says whose cordon it is. edgecore takes back its own and no other.
const CordonAnnotation = "skerry.io/cordoned-by"

// Annotations of a NodeOperation.
const (
	// RequestedByAnnotation names the user who made the object. An admission policy in manifests/ sets it and keeps it.
	RequestedByAnnotation = "skerry.io/requested-by"
	// DeviceRequestAnnotation is on those that a device made of a request on the spot: by it the device recognizes its own.
	DeviceRequestAnnotation = "skerry.io/device-request"
)

// RequestedOnDevice is who requested an operation on the device itself.
const RequestedOnDevice = "device"

// OperationType is what is to be done with the device.
// +kubebuilder:validation:Enum=Reboot;Shutdown;ImageUpdate;Drain
type OperationType string

// The operations.
const (
	OperationReboot      OperationType = "Reboot"
	OperationShutdown    OperationType = "Shutdown"
	OperationImageUpdate OperationType = "ImageUpdate"
	OperationDrain       OperationType = "Drain" // nothing but the drain; the node stays cordoned until the operation is cancelled or the device boots
)

// DrainPolicy says how much an operation needs the drain.
// +kubebuilder:validation:Enum=Required;BestEffort;Skip
type DrainPolicy string

// The policies.
const (
	DrainRequired   DrainPolicy = "Required"   // a drain that fails ends the operation
	DrainBestEffort DrainPolicy = "BestEffort" // a drain that fails does not hold the operation
	DrainSkip       DrainPolicy = "Skip"       // no drain
)

// UnreachablePolicy says what an operation does while the API can't be reached.
// +kubebuilder:validation:Enum=Defer;Proceed
type UnreachablePolicy string

// The policies.
const (
	UnreachableDefer   UnreachablePolicy = "Defer"
	UnreachableProceed UnreachablePolicy = "Proceed"
)

// DrainPhase is how far the drain of a node is.
// +kubebuilder:validation:Enum=Unknown;NotSupported;NotRequested;Requested;Starting;Cordoned;FailedCordon;DrainRetrying;FailedDrain;Complete
type DrainPhase string

// The phases, in the order of their numbers, 0 to 9.
const (
	DrainUnknown      DrainPhase = "Unknown"
	DrainNotSupported DrainPhase = "NotSupported" // the node is alone, or drain is switched off
	DrainNotRequested DrainPhase = "NotRequested"
	DrainRequested    DrainPhase = "Requested"
	DrainStarting     DrainPhase = "Starting"
	DrainCordoned     DrainPhase = "Cordoned"
	DrainFailedCordon DrainPhase = "FailedCordon"
	DrainRetrying     DrainPhase = "DrainRetrying"
	DrainFailed       DrainPhase = "FailedDrain"
	DrainComplete     DrainPhase = "Complete"
)

// DrainPhases are the phases; the index of each is its number.
func DrainPhases() []DrainPhase {
	return []DrainPhase{
		DrainUnknown, DrainNotSupported, DrainNotRequested, DrainRequested, DrainStarting, DrainCordoned, DrainFailedCordon, DrainRetrying, DrainFailed, DrainComplete,
	}
}

// Number is the phase's place among the phases, 0 to 9; 0, which is Unknown's, of what is none.
func (p DrainPhase) Number() int {
	return max(0, slices.Index(DrainPhases(), p))
}

// NodeOperationSpec is what is wanted of one node.
//
// +kubebuilder:validation:XValidation:rule="(self.operation == 'ImageUpdate') == (has(self.image) && size(self.image) > 0)",message="image is needed by operation ImageUpdate, and means nothing for others"
type NodeOperationSpec struct {
	// NodeName is the node.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="nodeName can't be changed: make another operation"
	NodeName string `json:"nodeName"`
	// Operation is what is done once the node is drained: Reboot, Shutdown, ImageUpdate, or Drain for nothing more. The device runs a hook for it.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="operation can't be changed: cancel this one and make another"
	Operation OperationType `json:"operation"`
	// Image is what ImageUpdate switches to; the device's hook knows how to read it.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Image string `json:"image,omitempty"`
	// Drain says what a drain that fails means: Required ends the operation, BestEffort goes ahead, Skip does not drain at all.
	// +optional
	// +kubebuilder:default=Required
	Drain DrainPolicy `json:"drain,omitempty"`
	// DrainTimeout bounds one attempt to drain. Left out, the device's configuration says.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="must be at least 1s"
	DrainTimeout *metav1.Duration `json:"drainTimeout,omitempty"`
	// WhenUnreachable says what the device does while it can't reach the API: Defer waits for it, Proceed goes ahead after 300 s.
	// +optional
	// +kubebuilder:default=Defer
	WhenUnreachable UnreachablePolicy `json:"whenUnreachable,omitempty"`
	// Cancel ends the operation if it has not gone ahead, and takes back the node's cordon if edgecore set it.
	// +optional
	Cancel bool `json:"cancel,omitempty"`
}

// BlockedReason says why a pod is still on the node.
// +kubebuilder:validation:Enum=DisruptionBudget;Pinned;EvictionFailed;Terminating
type BlockedReason string

// The reasons.
const (
	BlockedByBudget BlockedReason = "DisruptionBudget" // a PodDisruptionBudget does not allow it now
	BlockedPinned   BlockedReason = "Pinned"           // it carries spec.nodeName and came back
	BlockedFailed   BlockedReason = "EvictionFailed"
	// BlockedTerminating: the eviction was accepted, and the pod has not gone within its grace period.
	BlockedTerminating BlockedReason = "Terminating"
)

// BlockedPod is a pod that holds the drain.
type BlockedPod struct {
	Namespace string        `json:"namespace"`
	Name      string        `json:"name"`
	Reason    BlockedReason `json:"reason"`
	// PDB names the PodDisruptionBudgets that cover the pod, where one of them is the reason.
	// +optional
	PDB string `json:"pdb,omitempty"`
	// Message is what the API said.
	// +optional
	Message string `json:"message,omitempty"`
}

// The conditions of a NodeOperation. Done is there from the beginning: while it is False its reason is the stage (Waiting, Running), and its message says what is
// waited for.
const (
	OperationDone      = "Done"      // it was carried out
	OperationFailed    = "Failed"    // it ended without being carried out
	OperationCancelled = "Cancelled" // it was cancelled
)

// OperationNodeUnknown is the reason of Done while the cluster has no edge node of the operation's nodeName. cloudcore
// writes it; a device that takes the operation up replaces it.
const OperationNodeUnknown = "NodeUnknown"

// NodeOperationStatus is how far the operation is.
type NodeOperationStatus struct {
	// Phase is how far the drain is.
	// +optional
	Phase DrainPhase `json:"phase,omitempty"`
	// PhaseNumber is the number of the phase, 0 to 9, for tools that know the phases by number.
	// +optional
	PhaseNumber int32 `json:"phaseNumber"`
	// RequestedBy says who asked: the user of the cluster, or "device" for a request made on the device itself.
	// +optional
	RequestedBy string `json:"requestedBy,omitempty"`
	// RequestedAt is when the device took the request.
	// +optional
	RequestedAt *metav1.Time `json:"requestedAt,omitempty"`
	// Attempts is how many attempts to drain there were, the running one included.
	// +optional
	Attempts int32 `json:"attempts"`
	// BlockedPods are the pods that hold the drain, the first hundred of them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	BlockedPods []BlockedPod `json:"blockedPods,omitempty"`
	// BootIDBefore and BootIDAfter tell the boots before and after the operation apart.
	// +optional
	BootIDBefore string `json:"bootIDBefore,omitempty"`
	// +optional
	BootIDAfter string `json:"bootIDAfter,omitempty"`
	// ExitCode is the hook's.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`
	// Output is the end of what the hook printed.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Output string `json:"output,omitempty"`
	// Conditions: Done, Failed, Cancelled. Done's reason is the operation's outcome; its message explains it.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// CompletedAt is when the operation ended, well or not.
	// +optional
	CompletedAt *metav1.Time `json:"completedAt,omitempty"`
}

// NodeOperation is one operation wanted of one device: a reboot, a shutdown, an image update, or a drain alone. It waits until the node's pods have been moved away
// with respect for every PodDisruptionBudget.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=nodeop,categories=skerry
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Operation",type=string,JSONPath=`.spec.operation`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="No",type=integer,JSONPath=`.status.phaseNumber`
// +kubebuilder:printcolumn:name="Attempts",type=integer,JSONPath=`.status.attempts`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.conditions[?(@.type=="Done")].reason`
// +kubebuilder:printcolumn:name="Completed",type=date,JSONPath=`.status.completedAt`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeOperation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what is wanted of one node.
	Spec NodeOperationSpec `json:"spec"`
	// Status is how far the operation is.
	// +optional
	Status NodeOperationStatus `json:"status,omitempty"`
}

// NodeOperationList is a list of NodeOperations.
// +kubebuilder:object:root=true
type NodeOperationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeOperation `json:"items"`
}
