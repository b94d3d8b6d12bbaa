package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// NodeOperationSets is the plural name of the resource.
const NodeOperationSets = "nodeoperationsets"

// OperationSetLabel of a NodeOperation names the NodeOperationSet that it was made for.
const OperationSetLabel = "skerry.io/operation-set"

// OperationSetAnnotation of a NodeOperation is the set's part of it: an OperationSetOrigin as JSON.
const OperationSetAnnotation = "skerry.io/operation-set-origin"

// RescuedAtAnnotation of a Node is when its device last asked for its upgrades in a rescue session, as RFC 3339, at most one RescuedInterval ago while the session
// is open. Such a node is NotReady, and a NodeOperationSet of type Upgrade upgrades it nevertheless.
const RescuedAtAnnotation = "skerry.io/rescued-at"

// RescuedInterval is how often RescuedAtAnnotation is written while a device is rescued.
const RescuedInterval = 5 * time.Minute

// OperationSetsAnnotation of a Node is the list of the results of NodeOperationSets there: up to MaxOperationSetResults of OperationSetResult, as JSON, the newest
// last. cloudcore alone writes it (manifests/cloudcore/operationsets.yaml).
const OperationSetsAnnotation = "skerry.io/operation-sets"

// The bounds of NodeOperationSets.
const (
	MaxOperationSets       = 64  // in a cluster; younger ones wait
	MaxOperationSetResults = 16  // on one Node
	MaxOperationsAtOnce    = 500 // NodeOperations of all sets that have not ended
	MaxOperationSetFails   = 100 // in a status
)

// NodeOperationTemplate is the spec of the NodeOperations of a set, without the node.
//
// +kubebuilder:validation:XValidation:rule="(self.operation == 'ImageUpdate') == (has(self.image) && size(self.image) > 0)",message="image is needed by operation ImageUpdate, and means nothing for others"
// +kubebuilder:validation:XValidation:rule="(self.operation == 'Upgrade') == has(self.upgrade)",message="upgrade is needed by operation Upgrade, and means nothing for others"
// +kubebuilder:validation:XValidation:rule="(self.operation == 'Config') == has(self.config)",message="config is needed by operation Config, and means nothing for others"
// +kubebuilder:validation:XValidation:rule="(self.operation == 'ImagePull') == has(self.imagePull)",message="imagePull is needed by operation ImagePull, and means nothing for others"
// +kubebuilder:validation:XValidation:rule="!has(self.healthTimeout) || self.operation in ['Upgrade', 'Config']",message="healthTimeout means nothing but for operations Upgrade and Config"
// +kubebuilder:validation:XValidation:rule="!has(self.window) || self.operation in ['Upgrade', 'Config', 'ImagePull']",message="window means nothing but for operations Upgrade, Config and ImagePull"
type NodeOperationTemplate struct {
	// Operation is the operation of each device, as in a NodeOperation.
	Operation OperationType `json:"operation"`
	// Image is the image that ImageUpdate switches to.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Image string `json:"image,omitempty"`
	// Drain is the policy for a drain that fails.
	// +optional
	// +kubebuilder:default=Required
	Drain DrainPolicy `json:"drain,omitempty"`
	// DrainTimeout bounds one attempt to drain. Left out, the device's configuration has it.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="must be at least 1s"
	DrainTimeout *metav1.Duration `json:"drainTimeout,omitempty"`
	// WhenUnreachable is the device's policy while it can't reach the API.
	// +optional
	// +kubebuilder:default=Defer
	WhenUnreachable UnreachablePolicy `json:"whenUnreachable,omitempty"`
	// Upgrade is the version of edgecore that operation Upgrade installs.
	// +optional
	Upgrade *UpgradeSpec `json:"upgrade,omitempty"`
	// Config is the change of edgecore.yaml that operation Config makes.
	// +optional
	Config *ConfigSpec `json:"config,omitempty"`
	// ImagePull is the images that operation ImagePull pulls.
	// +optional
	ImagePull *ImagePullSpec `json:"imagePull,omitempty"`
	// HealthTimeout bounds the trial run of operations Upgrade and Config.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10s') && duration(self) <= duration('24h')",message="must be 10s to 24h"
	HealthTimeout *metav1.Duration `json:"healthTimeout,omitempty"`
	// Window is when a device may switch, by its own clock. NodeDeadline begins with the end of the time that a device may have to wait for it: a day, or a week
	// where the window has days.
	// +optional
	Window *OperationWindow `json:"window,omitempty"`
}

// Spec returns the spec of the operation of one node.
func (t *NodeOperationTemplate) Spec(node string) NodeOperationSpec {
	return NodeOperationSpec{
		NodeName: node, Operation: t.Operation, Image: t.Image, Drain: t.Drain, DrainTimeout: t.DrainTimeout, WhenUnreachable: t.WhenUnreachable,
		Upgrade: t.Upgrade, Config: t.Config, ImagePull: t.ImagePull, HealthTimeout: t.HealthTimeout, Window: t.Window,
	}
}

// OperationWave is a group of nodes that are done before those of the next wave begin.
//
// +kubebuilder:validation:XValidation:rule="has(self.percent) != has(self.selector)",message="a wave has either percent or selector"
type OperationWave struct {
	// Selector selects the wave's nodes by their labels, of those that are in no earlier wave.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// Percent is the wave's share of all nodes of the set, rounded up, of those that are in no earlier wave. Linked nodes come first.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Percent *int32 `json:"percent,omitempty"`
	// Soak is the time from the end of the wave's last operation to the begin of the next wave. A node of the wave that becomes NotReady begins it anew.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s') && duration(self) <= duration('720h')",message="must be from 0s to 720h"
	Soak *metav1.Duration `json:"soak,omitempty"`
}

// NodeOperationSetSpec is an operation, the nodes that get it, and the pace.
//
// +kubebuilder:validation:XValidation:rule="has(self.nodeSelector) != has(self.nodePool)",message="choose the nodes by either nodeSelector or nodePool; an empty nodeSelector is all edge nodes"
type NodeOperationSetSpec struct {
	// Template is the operation. A changed template goes to all nodes again; other fields change the pace alone.
	Template NodeOperationTemplate `json:"template"`
	// NodeSelector selects edge nodes by their labels; {} is all of them.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// NodePool selects the edge nodes of a NodePool.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=48
	NodePool string `json:"nodePool,omitempty"`
	// Waves are done one after the other. Nodes outside of them are the last wave.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Waves []OperationWave `json:"waves,omitempty"`
	// MaxParallel is how many operations run at once: a number, or a percentage of the set's nodes, rounded up.
	// +optional
	// +kubebuilder:default="10%"
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 500 : self.matches('^([1-9][0-9]?|100)%$')",message="must be a number from 1 to 500, or a percentage from 1% to 100%"
	MaxParallel *intstr.IntOrString `json:"maxParallel,omitempty"`
	// MaxUnavailablePerPool is how many nodes of one NodePool may have an operation or be NotReady at once. Nodes without a pool are not counted.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=500
	MaxUnavailablePerPool int32 `json:"maxUnavailablePerPool,omitempty"`
	// FailureThreshold is how many operations may fail or be refused before no more begin: a number, or a percentage of those that have ended.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 : self.matches('^([0-9]|[1-9][0-9]|100)%$')",message="must be a number, or a percentage from 0% to 100%"
	FailureThreshold *intstr.IntOrString `json:"failureThreshold,omitempty"`
	// NodeDeadline bounds the operation of one node: after it the operation has failed.
	// +optional
	// +kubebuilder:default="30m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10s') && duration(self) <= duration('720h')",message="must be from 10s to 720h"
	NodeDeadline *metav1.Duration `json:"nodeDeadline,omitempty"`
	// Paused begins no more operations, and takes back those that wait on their devices. Those that run end by themselves.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// Abort is Paused, and cancels those that run as well, where a device still can.
	// +optional
	Abort bool `json:"abort,omitempty"`
	// Retry is a number to raise: nodes where the operation failed or was refused get it once more.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	Retry int32 `json:"retry,omitempty"`
	// TTLSecondsAfterFinished is how long the set stays once all its nodes have ended their operations, offline ones included. Left out, it stays, and new nodes
	// get the operation too.
	// +optional
	// +kubebuilder:validation:Minimum=0
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
}

// OperationResult is how the operation of one node ended.
// +kubebuilder:validation:Enum=Done;Failed;Refused
type OperationResult string

// The results.
const (
	ResultDone    OperationResult = "Done"
	ResultFailed  OperationResult = "Failed"
	ResultRefused OperationResult = "Refused" // by the device, before it began
)

// OperationSetOrigin is which set, and which state of it, an operation was made for.
type OperationSetOrigin struct {
	Set        string `json:"set"`
	UID        string `json:"uid"`
	Generation int64  `json:"generation"`
	Template   string `json:"template"` // a digest of the template: the generation grows with every change of the spec
	Retry      int32  `json:"retry,omitempty"`
	Wave       int    `json:"wave"`
	// Machine identifies the device's hardware, of operations that a device which replaces this one has to repeat.
	Machine string `json:"machine,omitempty"`
	// Withdrawn: the set's abort cancelled it; its end is no result.
	Withdrawn bool `json:"withdrawn,omitempty"`
}

// OperationSetResult is the result of one set in a Node's annotation.
type OperationSetResult struct {
	OperationSetOrigin `json:",inline"`
	Result             OperationResult `json:"result"`
	// Reason and Message are the operation's, cut; only of results that are not Done.
	Reason  string      `json:"reason,omitempty"`
	Message string      `json:"message,omitempty"`
	At      metav1.Time `json:"at"`
}

// NodeFailure is an operation that failed or was refused.
type NodeFailure struct {
	Node string `json:"node"`
	// Result is Failed or Refused.
	Result OperationResult `json:"result"`
	// +optional
	Reason string `json:"reason,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Message string `json:"message,omitempty"`
}

// The conditions of a NodeOperationSet. Reconciling and Stalled are those of kstatus.
const (
	SetReady       = "Ready"       // all linked nodes have ended their operations
	SetReconciling = "Reconciling" // operations run or will begin
	SetStalled     = "Stalled"     // no more begin until the set is changed
	SetConflict    = "Conflict"    // an older set has the same operation on some of the nodes
)

// NodeOperationSetStatus is the progress.
type NodeOperationSetStatus struct {
	// ObservedGeneration is the metadata.generation that the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Matched is the number of edge nodes that the set selects, without those of an older set.
	// +optional
	Matched int32 `json:"matched"`
	// Done is the number of nodes that have carried out the operation.
	// +optional
	Done int32 `json:"done"`
	// Running is the number of operations on linked nodes that have not ended.
	// +optional
	Running int32 `json:"running"`
	// Offline is the number of nodes without a link that have not done it.
	// +optional
	Offline int32 `json:"offline"`
	// Failed is the number of nodes where the operation failed.
	// +optional
	Failed int32 `json:"failed"`
	// Refused is the number of nodes that refused the operation.
	// +optional
	Refused int32 `json:"refused"`
	// Progress is done and matched, like "17/1000".
	// +optional
	Progress string `json:"progress,omitempty"`
	// Wave is the current wave, from 1, and the number of waves, like "2/3".
	// +optional
	Wave string `json:"wave,omitempty"`
	// Failures are the first hundred nodes where it failed or was refused, by name.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	Failures []NodeFailure `json:"failures,omitempty"`
	// Conditions: Ready, Reconciling, Stalled, Conflict.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NodeOperationSet is one operation for many devices: a NodeOperation for each, in waves, and not faster than the set allows. Too many failures stop it. Devices
// that were offline, and new ones, get the newest template when they have a link.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=nodeopset,categories=skerry
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Operation",type=string,JSONPath=`.spec.template.operation`
// +kubebuilder:printcolumn:name="Wave",type=string,JSONPath=`.status.wave`
// +kubebuilder:printcolumn:name="Done",type=string,JSONPath=`.status.progress`
// +kubebuilder:printcolumn:name="Running",type=integer,JSONPath=`.status.running`
// +kubebuilder:printcolumn:name="Offline",type=integer,JSONPath=`.status.offline`
// +kubebuilder:printcolumn:name="Failed",type=integer,JSONPath=`.status.failed`
// +kubebuilder:printcolumn:name="Refused",type=integer,JSONPath=`.status.refused`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name must not be longer than 63 characters: it becomes a label's value"
type NodeOperationSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the operation, the nodes, and the pace.
	Spec NodeOperationSetSpec `json:"spec"`
	// Status is the progress.
	// +optional
	Status NodeOperationSetStatus `json:"status,omitempty"`
}

// NodeOperationSetList is a list of NodeOperationSets.
// +kubebuilder:object:root=true
type NodeOperationSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeOperationSet `json:"items"`
}
