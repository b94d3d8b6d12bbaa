package v1alpha1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeOperations is the plural name of the resource.
const NodeOperations = "nodeoperations"

// CordonAnnotation on a Node names the owner of its cordon. edgecore takes back its own and no
// other.
const CordonAnnotation = "skerry.io/cordoned-by"

// Annotations of a NodeOperation.
const (
	// RequestedByAnnotation names the user who made the object. An admission policy in manifests/ sets it and keeps it.
	RequestedByAnnotation = "skerry.io/requested-by"
	// DeviceRequestAnnotation is on those that a device made of a request on the spot: by it the device recognizes its own.
	DeviceRequestAnnotation = "skerry.io/device-request"
)

// RequestedOnDevice is the requester of an operation on the device itself.
const RequestedOnDevice = "device"

// OperationType is the kind of operation on the device.
// +kubebuilder:validation:Enum=Reboot;Shutdown;ImageUpdate;Drain;Upgrade;Config;ImagePull
type OperationType string

// The operations.
const (
	OperationReboot      OperationType = "Reboot"
	OperationShutdown    OperationType = "Shutdown"
	OperationImageUpdate OperationType = "ImageUpdate"
	OperationDrain       OperationType = "Drain" // the drain alone; the node stays cordoned until the operation is cancelled or the device boots

	// These need neither a drain nor a cordon, and no hook: edgecore carries them out itself. Creating one needs the verb create on a
	// subresource of nodeoperations besides (RightOf).
	OperationUpgrade   OperationType = "Upgrade"   // another version of edgecore
	OperationConfig    OperationType = "Config"    // an overlay of edgecore.yaml
	OperationImagePull OperationType = "ImagePull" // container images before they are needed
)

// RightOf returns the subresource of nodeoperations on which the verb create is needed to create an operation; "" if create on nodeoperations is enough.
func RightOf(t OperationType) string {
	switch t {
	case OperationUpgrade:
		return "upgrade"
	case OperationConfig:
		return "config"
	case OperationImagePull:
		return "imagepull"
	}
	return ""
}

// DrainPolicy is how an operation depends on the drain.
// +kubebuilder:validation:Enum=Required;BestEffort;Skip
type DrainPolicy string

// The policies.
const (
	DrainRequired   DrainPolicy = "Required"   // a drain that fails ends the operation
	DrainBestEffort DrainPolicy = "BestEffort" // a drain that fails does not hold the operation
	DrainSkip       DrainPolicy = "Skip"       // no drain
)

// UnreachablePolicy is how an operation behaves while the API can't be reached.
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

// Number is the phase's place among the phases, 0 to 9; 0, which is Unknown's, for an invalid
// phase.
func (p DrainPhase) Number() int {
	return max(0, slices.Index(DrainPhases(), p))
}

// NodeOperationSpec is the desired operation of one node.
//
// +kubebuilder:validation:XValidation:rule="(self.operation == 'ImageUpdate') == (has(self.image) && size(self.image) > 0)",message="image is needed by operation ImageUpdate, and means nothing for others"
// +kubebuilder:validation:XValidation:rule="(self.operation == 'Upgrade') == has(self.upgrade)",message="upgrade is needed by operation Upgrade, and means nothing for others"
// +kubebuilder:validation:XValidation:rule="(self.operation == 'Config') == has(self.config)",message="config is needed by operation Config, and means nothing for others"
// +kubebuilder:validation:XValidation:rule="(self.operation == 'ImagePull') == has(self.imagePull)",message="imagePull is needed by operation ImagePull, and means nothing for others"
// +kubebuilder:validation:XValidation:rule="!has(self.healthTimeout) || self.operation in ['Upgrade', 'Config']",message="healthTimeout means nothing but for operations Upgrade and Config"
// +kubebuilder:validation:XValidation:rule="!has(self.window) || self.operation in ['Upgrade', 'Config', 'ImagePull']",message="window means nothing but for operations Upgrade, Config and ImagePull"
type NodeOperationSpec struct {
	// NodeName is the node.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="nodeName can't be changed: make another operation"
	NodeName string `json:"nodeName"`
	// Operation is carried out once the node is drained: Reboot, Shutdown, ImageUpdate, or Drain
	// for the drain alone. The device runs a hook for it. Upgrade, Config and ImagePull need no
	// drain, and no hook.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="operation can't be changed: cancel this one and make another"
	Operation OperationType `json:"operation"`
	// Image is the target of ImageUpdate, in the format of the device's hook.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Image string `json:"image,omitempty"`
	// Drain is how the operation depends on the drain: Required fails the operation if the drain
	// fails, BestEffort continues, Skip does not drain at all.
	// +optional
	// +kubebuilder:default=Required
	Drain DrainPolicy `json:"drain,omitempty"`
	// DrainTimeout bounds one attempt to drain. The default is in the device's configuration.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="must be at least 1s"
	DrainTimeout *metav1.Duration `json:"drainTimeout,omitempty"`
	// WhenUnreachable is how the operation behaves while the device can't reach the API: Defer
	// waits for it, Proceed continues after 300 s.
	// +optional
	// +kubebuilder:default=Defer
	WhenUnreachable UnreachablePolicy `json:"whenUnreachable,omitempty"`
	// Cancel ends the operation if it has not gone ahead, and takes back the node's cordon if edgecore set it.
	// +optional
	Cancel bool `json:"cancel,omitempty"`
	// Upgrade is the version of edgecore that operation Upgrade installs.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="upgrade can't be changed: cancel this operation and make another"
	Upgrade *UpgradeSpec `json:"upgrade,omitempty"`
	// Config is the change of edgecore.yaml that operation Config makes.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="config can't be changed: cancel this operation and make another"
	Config *ConfigSpec `json:"config,omitempty"`
	// ImagePull is the images that operation ImagePull pulls.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="imagePull can't be changed: cancel this operation and make another"
	ImagePull *ImagePullSpec `json:"imagePull,omitempty"`
	// HealthTimeout bounds the trial run of operations Upgrade and Config: without a healthy device after it, the former version or configuration returns.
	// Left out: 10m.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10s') && duration(self) <= duration('24h')",message="must be 10s to 24h"
	HealthTimeout *metav1.Duration `json:"healthTimeout,omitempty"`
	// Window is when the device may switch to a version or configuration, which it may fetch before; of ImagePull: when pulls begin. Left out: at any time.
	// +optional
	Window *OperationWindow `json:"window,omitempty"`
	// Retry is a number to raise: an operation of type Upgrade, Config or ImagePull that failed is then tried again, also with a digest that the device has rejected.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:XValidation:rule="self >= oldSelf",message="retry can only be raised"
	Retry int32 `json:"retry,omitempty"`
	// TTLSecondsAfterFinished is the time after which the NodeOperation is deleted once it has
	// ended; left out: never.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
}

// UpgradeSpec is one version of edgecore, and the file that it has to be.
type UpgradeSpec struct {
	// Version is the version of edgecore, as `edgecore version` prints it: v1.4.0.
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=96
	// +kubebuilder:validation:Pattern=`^v[0-9]{1,6}\.[0-9]{1,6}\.[0-9]{1,6}([-+][0-9A-Za-z.+-]{1,64})?$`
	Version string `json:"version"`
	// Digest is the SHA-256 of the program, for the device's architecture: "sha256:" and 64 hexadecimal digits. Left out, the signed metadata alone name it.
	// +optional
	// +kubebuilder:validation:MaxLength=71
	// +kubebuilder:validation:Pattern=`^sha256:[0-9a-f]{64}$`
	Digest string `json:"digest,omitempty"`
	// AllowDowngrade permits a version that is older than the running one.
	// +optional
	AllowDowngrade bool `json:"allowDowngrade,omitempty"`
}

// MaxConfigPatch bounds ConfigSpec.Patch, in bytes.
const MaxConfigPatch = 32 << 10

// ConfigSpec is a change of edgecore.yaml.
type ConfigSpec struct {
	// Patch is a merge patch (RFC 7386) of edgecore.yaml, as YAML or JSON. It replaces the patch of an earlier operation; an empty object takes that back. Fields that
	// name programs, files, keys, sources or servers are refused by the device.
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=32768
	Patch string `json:"patch"`
}

// ImagePullSpec is container images that the device pulls before they are needed.
type ImagePullSpec struct {
	// Images are their references.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=384
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]+([._-]+[a-z0-9]+)*(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$`
	Images []string `json:"images"`
	// PullSecret is a Secret of type kubernetes.io/dockerconfigjson. A pod on the device has to refer to it: the device gets no other.
	// +optional
	PullSecret *SecretReference `json:"pullSecret,omitempty"`
}

// SecretReference names a Secret.
type SecretReference struct {
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`
}

// Weekday is a day of the week.
// +kubebuilder:validation:Enum=Mon;Tue;Wed;Thu;Fri;Sat;Sun
type Weekday string

// OperationWindow is the time of day, on some days, at which a device may switch. The device's clock counts.
//
// +kubebuilder:validation:XValidation:rule="self.start != self.end",message="start and end must differ; an end before the start is of the next day"
type OperationWindow struct {
	// Days are those on which the window starts; left out: all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=7
	Days []Weekday `json:"days,omitempty"`
	// Start and End are times of day, HH:MM. An end before the start is of the next day.
	// +kubebuilder:validation:MaxLength=5
	// +kubebuilder:validation:Pattern=`^([01][0-9]|2[0-3]):[0-5][0-9]$`
	Start string `json:"start"`
	// +kubebuilder:validation:MaxLength=5
	// +kubebuilder:validation:Pattern=`^([01][0-9]|2[0-3]):[0-5][0-9]$`
	End string `json:"end"`
	// TimeZone is a name of the IANA database: Europe/Berlin. Left out: the device's own.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}$`
	TimeZone string `json:"timeZone,omitempty"`
}

// BlockedReason is why a pod is still on the node.
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
	// Message is the error of the API.
	// +optional
	Message string `json:"message,omitempty"`
}

// The conditions of a NodeOperation. Done is there from the beginning: while it is False its reason
// is the stage (Waiting, Running), and its message tells the current wait.
const (
	OperationDone      = "Done"      // it was carried out
	OperationFailed    = "Failed"    // it ended without being carried out
	OperationCancelled = "Cancelled" // it was cancelled
)

// Reasons of conditions Done and Failed of operations Upgrade, Config and ImagePull.
const (
	OperationConfirmed  = "Confirmed"  // Done: the device is healthy with it
	OperationUnchanged  = "Unchanged"  // Done: the device had it already
	OperationPulled     = "Pulled"     // Done: every image is on the device
	OperationRefused    = "Refused"    // Failed: before a byte was fetched; the message names the reason
	OperationRejected   = "Rejected"   // Failed: an earlier trial run of this digest went back; raise retry to try again
	OperationRolledBack = "RolledBack" // Failed: the trial run went back; output is the end of its log
	OperationFetching   = "Fetching"   // Failed: the artefact or an image could not be fetched
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
	// RequestedBy is the requester: the user of the cluster, or "device" for a request made on the
	// device itself.
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
	// Output is the end of the hook's output.
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
	// ObservedRetry is the retry that the status is about.
	// +optional
	ObservedRetry int32 `json:"observedRetry,omitempty"`
	// Upgrade is how far operation Upgrade is.
	// +optional
	Upgrade *UpgradeStatus `json:"upgrade,omitempty"`
	// Checks are the site's own health checks of a trial run.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Checks []HealthCheck `json:"checks,omitempty"`
	// Images are those of operation ImagePull.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Images []PulledImage `json:"images,omitempty"`
}

// UpgradeStatus is how far an Upgrade is.
type UpgradeStatus struct {
	// From is the version that ran before.
	// +optional
	From string `json:"from,omitempty"`
	// Digest is of the program that is tried: "sha256:" and 64 hexadecimal digits.
	// +optional
	Digest string `json:"digest,omitempty"`
	// Fetched of Size bytes are on the device; Delta: they are the difference to the running
	// program; FromSite: they came from devices of the site, and not over the link.
	// +optional
	Fetched int64 `json:"fetched,omitempty"`
	// +optional
	Size int64 `json:"size,omitempty"`
	// +optional
	Delta bool `json:"delta,omitempty"`
	// +optional
	FromSite bool `json:"fromSite,omitempty"`
	// Starts is how many trial runs there were.
	// +optional
	Starts int32 `json:"starts,omitempty"`
}

// HealthCheck is a program of /etc/skerry/check/required.d or wanted.d, and its exit code in the last trial run.
type HealthCheck struct {
	Name string `json:"name"`
	// Required: the trial run goes back where it does not exit with 0.
	Required bool  `json:"required"`
	ExitCode int32 `json:"exitCode"`
}

// PulledImage is one image of an ImagePull.
type PulledImage struct {
	Image string `json:"image"`
	// Pulled: it is on the device.
	Pulled bool `json:"pulled"`
	// Kept: garbage collection of images leaves it alone.
	Kept bool `json:"kept"`
	// Message names the missing part.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Message string `json:"message,omitempty"`
}

// NodeOperation is one operation wanted of one device: a reboot, a shutdown, an image update, or a drain alone, which wait until the node's pods have been moved away
// with respect for every PodDisruptionBudget; or another version or configuration of edgecore, or container images, for which no pod moves.
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

	// Spec is the desired operation of one node.
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
