package v1alpha1

import (
	"bytes"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// EdgeApps is the plural name of the resource.
const EdgeApps = "edgeapps"

// Labels and names of the objects that cloudcore makes for an EdgeApp.
const (
	// EdgeAppLabel is on the ReplicaSet, the claims and the pods of an EdgeApp, and names it.
	EdgeAppLabel = "skerry.io/edge-app"
	// EdgeAppRevisionLabel distinguishes pods of one version of the rendered template from those of another.
	EdgeAppRevisionLabel = "skerry.io/edge-app-revision"
	// EdgeAppNamespaceLabel, with the value "enabled", is on namespaces in which cloudcore may make the objects of EdgeApps.
	EdgeAppNamespaceLabel = "skerry.io/edge-apps"
	// EdgeAppGate holds a new pod of an application with fencing Confirmed until no other pod of it can be running.
	EdgeAppGate = "skerry.io/one-copy"
	// EdgeAppHeldAtBoot is an annotation of the pods of a singleton: after a boot a device starts them once the cloud has confirmed them.
	EdgeAppHeldAtBoot = "skerry.io/held-at-boot"
	// EdgeAppEnded is an annotation of an EdgeApp by which a person confirms that a pod of it,
	// named by its UID, does not run any more.
	EdgeAppEnded = "skerry.io/ended"
)

// AppAffinity is whether an application may run on other nodes than its designated one.
// +kubebuilder:validation:Enum=Preferred;Required
type AppAffinity string

// The affinities.
const (
	AppPreferred AppAffinity = "Preferred" // it moves when its node is lost
	AppRequired  AppAffinity = "Required"  // it never moves
)

// Fencing is the condition under which an application of a lost node is started on another one.
// +kubebuilder:validation:Enum=Confirmed;None
type Fencing string

// The ways of fencing.
const (
	FencingConfirmed Fencing = "Confirmed" // the node is known to be dead: two copies never run
	FencingNone      Fencing = "None"      // no condition: two copies may run while the old node is cut off
)

// AppFailover configures when an application leaves a node that is lost.
type AppFailover struct {
	// After is how long the node must have been NotReady.
	// +optional
	// +kubebuilder:default="15s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="must be at least 1s"
	After *metav1.Duration `json:"after,omitempty"`
	// Fencing is Confirmed or None. Left out, it is Confirmed for an application with volumes or
	// with singleton, otherwise None.
	// +optional
	Fencing Fencing `json:"fencing,omitempty"`
	// OfflineStart lets a device that boots without a link start a singleton. Two copies may run then: the application may have moved
	// while the device was off.
	// +optional
	OfflineStart bool `json:"offlineStart,omitempty"`
}

// AppFailback configures whether an application returns to its designated node.
type AppFailback struct {
	// Enable lets the application return by itself, once for each boot of its designated node.
	// +optional
	Enable bool `json:"enable,omitempty"`
	// After is how long the designated node must have been Ready.
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="must be at least 1s"
	After *metav1.Duration `json:"after,omitempty"`
}

// AppVolume is a claim of an application. The template's containers mount it by its name.
//
// +kubebuilder:validation:XValidation:rule="!self.replicated || (has(self.storageClassName) && size(self.storageClassName) > 0)",message="a replicated volume needs a storageClassName whose volumes have replicas on several nodes"
type AppVolume struct {
	// Name is the volume's name in volumeMounts and volumeDevices of the template. The claim is
	// called APPLICATION-NAME.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`
	// +kubebuilder:validation:MaxLength=32
	Name string `json:"name"`
	// Replicated volumes follow the application to another node; others stay where they are, and the application with them.
	// +optional
	// +kubebuilder:default=false
	Replicated bool `json:"replicated"`
	// StorageClassName is the class of the claim; left out, the cluster's default.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	StorageClassName string `json:"storageClassName,omitempty"`
	// Size is the requested storage of the claim.
	// +kubebuilder:validation:Pattern=`^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$`
	// +kubebuilder:validation:MaxLength=32
	Size string `json:"size"`
	// Block makes it a device (volumeMode Block) instead of a file system.
	// +optional
	Block bool `json:"block,omitempty"`
	// DesignatedNode is where the volume is made. The only valid value is the application's own
	// designatedNode, which is the default.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	DesignatedNode string `json:"designatedNode,omitempty"`
}

// ContentType is the kind of content, which decides who fetches it.
// +kubebuilder:validation:Enum=ContainerImage;DiskImage
type ContentType string

// The types of content.
const (
	ContentContainerImage ContentType = "ContainerImage" // every node has it
	ContentDiskImage      ContentType = "DiskImage"      // the designated node alone: it goes into a volume, whose replicas are the storage's business
)

// AppContent is content that must be on a device before the application can start there.
//
// +kubebuilder:validation:XValidation:rule="self.type != 'DiskImage' || (has(self.sha256) && self.source.startsWith('http'))",message="a DiskImage needs a source that begins with http:// or https://, and its sha256"
type AppContent struct {
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
	// +kubebuilder:validation:MaxLength=63
	Name string      `json:"name"`
	Type ContentType `json:"type"`
	// Source is the reference of the container image, or the URL of the disk image.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Source string `json:"source"`
	// SHA256 is the digest of the disk image, in hexadecimal.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	// +kubebuilder:validation:MaxLength=64
	SHA256 string `json:"sha256,omitempty"`
}

// EdgeAppSpec is the desired state of an application.
//
// +kubebuilder:validation:XValidation:rule="!has(self.volumes) || self.volumes.all(v, !has(v.designatedNode) || v.designatedNode == self.designatedNode)",message="an application has one designated node: designatedNode of a volume must be that of the application"
// +kubebuilder:validation:XValidation:rule="!(has(self.failover) && has(self.failover.fencing) && self.failover.fencing == 'None') || !has(self.volumes) || size(self.volumes) == 0",message="fencing None is not for an application with volumes: two devices would write to them"
// +kubebuilder:validation:XValidation:rule="!(has(self.failover) && has(self.failover.fencing) && self.failover.fencing == 'None') || !has(self.singleton) || !self.singleton",message="fencing None lets two copies run, which singleton forbids"
type EdgeAppSpec struct {
	// DesignatedNode is where the application belongs.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	DesignatedNode string `json:"designatedNode"`
	// Affinity is Preferred, or Required for an application that never moves.
	// +optional
	// +kubebuilder:default=Preferred
	Affinity AppAffinity `json:"affinity,omitempty"`
	// Activate is whether the application should run.
	// +optional
	// +kubebuilder:default=true
	Activate *bool `json:"activate,omitempty"`
	// Singleton forbids that two copies run at once, even without a volume.
	// +optional
	Singleton bool `json:"singleton,omitempty"`
	// +optional
	// +kubebuilder:default={}
	Failover AppFailover `json:"failover,omitempty"`
	// +optional
	Failback AppFailback `json:"failback,omitempty"`
	// Volumes are its claims. They are deleted with the application.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Volumes []AppVolume `json:"volumes,omitempty"`
	// Content is fetched beforehand.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Content []AppContent `json:"content,omitempty"`
	// CollectLogs has the output of the application's containers sent to the sink of cloudcore
	// (logs.endpoint), by devices whose edgecore has modules.appLogs enabled.
	// +optional
	CollectLogs bool `json:"collectLogs,omitempty"`
	// Template is the pod: a PodTemplateSpec as in a Deployment. Affinity to the designated node, tolerations and claims are added.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	//
	// It is kept as it was written: only cloudcore reads it, so one that can't be read is one application's trouble and no device's.
	Template runtime.RawExtension `json:"template"`
}

// PodTemplate reads the template. An unknown field is an error.
func (s *EdgeAppSpec) PodTemplate() (*corev1.PodTemplateSpec, error) {
	t := &corev1.PodTemplateSpec{}
	d := json.NewDecoder(bytes.NewReader(s.Template.Raw))
	d.DisallowUnknownFields()
	if err := d.Decode(t); err != nil {
		return nil, fmt.Errorf("reading spec.template: %w", err)
	}
	return t, nil
}

// Active reports whether the application is to run.
func (s *EdgeAppSpec) Active() bool { return s.Activate == nil || *s.Activate }

// Fenced is the fencing that counts.
func (s *EdgeAppSpec) Fenced() Fencing {
	if s.Failover.Fencing != "" {
		return s.Failover.Fencing
	}
	if s.Singleton || len(s.Volumes) > 0 {
		return FencingConfirmed
	}
	return FencingNone
}

// AppState is the state of an application in a device's runtime.
// +kubebuilder:validation:Enum=Running;Starting;Halting;Halted;Unknown
type AppState string

// The states.
const (
	AppRunning  AppState = "Running"
	AppStarting AppState = "Starting"
	AppHalting  AppState = "Halting"
	AppHalted   AppState = "Halted"  // it is not here
	AppUnknown  AppState = "Unknown" // the device can't tell
)

// ContentStatus is the state of content on a device.
type ContentStatus struct {
	Name string `json:"name"`
	// IsLocal is whether this node should fetch it.
	// +optional
	IsLocal bool `json:"isLocal"`
	// Ready is whether it is on the device.
	// +optional
	Ready bool `json:"ready"`
	// +optional
	Message string `json:"message,omitempty"`
}

// EdgeAppNode is one node's report of an application.
type EdgeAppNode struct {
	Name string `json:"name"`
	// IsDesignated is whether this is the application's designated node.
	// +optional
	IsDesignated bool `json:"isDesignated"`
	// ScheduledOnThisNode is whether a pod of it that is not being deleted is bound to this node.
	// +optional
	ScheduledOnThisNode bool `json:"scheduledOnThisNode"`
	// Running is whether its containers run on this node.
	// +optional
	Running bool `json:"running"`
	// ReportsStats is whether the statistics of the application are this node's. Once there is such
	// a node there is always exactly one: it is handed over in one write.
	// +optional
	ReportsStats bool `json:"reportsStats"`
	// State is the application's state in the node's runtime.
	// +optional
	State AppState `json:"state,omitempty"`
	// Restarts of its containers on this node.
	// +optional
	Restarts int32 `json:"restarts,omitempty"`
	// CollectTime is when the node saw this, by its own clock. It reports changes, so an old time
	// means that there was no change or that the node is disconnected: the condition Current shows
	// which.
	// +optional
	CollectTime *metav1.Time `json:"collectTime,omitempty"`
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Content []ContentStatus `json:"content,omitempty"`
}

// AppMove is the last time that an application changed its node.
type AppMove struct {
	From string      `json:"from"`
	To   string      `json:"to"`
	At   metav1.Time `json:"at"`
}

// AppReturn is the last return to the designated node that was tried.
type AppReturn struct {
	// BootID is the boot of the designated node that it was tried for.
	BootID string `json:"bootID"`
	// PodUID is the pod that was to be evicted for it.
	PodUID types.UID `json:"podUID"`
}

// AppCopy is a pod of an application with fencing Confirmed that was bound to a node and is not known to have ended.
type AppCopy struct {
	Node   string    `json:"node"`
	PodUID types.UID `json:"podUID"`
	// Removed is when the pod was first missing in the cluster without having ended.
	// +optional
	Removed *metav1.Time `json:"removed,omitempty"`
}

// The conditions of an EdgeApp.
const (
	// AppAccepted is False where the application can't be rendered; its message has the reason.
	AppAccepted = "Accepted"
	// AppCurrent is False while the active node does not report; its message has the time since
	// when.
	AppCurrent = "Current"
	// AppAwaitingFencing is True while the application would leave a lost node, and the node is not
	// confirmed to be dead.
	AppAwaitingFencing = "AwaitingFencing"
	// AppFailoverRefused is True while the application would leave a dead node, and can't; its
	// reason tells why.
	AppFailoverRefused = "FailoverRefused"
	// AppFailbackBlocked is True while the application would return to its designated node, and a PodDisruptionBudget does not allow it.
	AppFailbackBlocked = "FailbackBlocked"
)

// AppPhase is how an application is, in one word.
// +kubebuilder:validation:Enum=Refused;Inactive;Pending;Starting;Running;NotReady;AwaitingFencing;FailoverRefused
type AppPhase string

// The phases.
const (
	PhaseRefused         AppPhase = "Refused"
	PhaseInactive        AppPhase = "Inactive"
	PhasePending         AppPhase = "Pending"
	PhaseStarting        AppPhase = "Starting"
	PhaseRunning         AppPhase = "Running"
	PhaseNotReady        AppPhase = "NotReady" // its node is NotReady; as far as is known it runs there
	PhaseAwaitingFencing AppPhase = "AwaitingFencing"
	PhaseFailoverRefused AppPhase = "FailoverRefused"
)

// EdgeAppStatus is how an application is.
type EdgeAppStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	Phase AppPhase `json:"phase,omitempty"`
	// ActiveNode is where the application runs, as far as is known.
	// +optional
	ActiveNode string `json:"activeNode,omitempty"`
	// Failovers is how often it left a node other than for its designated one.
	// +optional
	Failovers int32 `json:"failovers"`
	// +optional
	LastMove *AppMove `json:"lastMove,omitempty"`
	// +optional
	LastFailback *AppReturn `json:"lastFailback,omitempty"`
	// Copies are the pods that may run, of an application with fencing Confirmed. No other is started while one of them was removed and its
	// node does not confirm that it has ended.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Copies []AppCopy `json:"copies,omitempty"`
	// Nodes are the reports of the nodes that have to do with the application.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	Nodes []EdgeAppNode `json:"nodes,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// EdgeApp is an application of which one copy runs on a device, and on another one when that device is lost.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced,shortName=eapp,categories=skerry
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Designated",type=string,JSONPath=`.spec.designatedNode`
// +kubebuilder:printcolumn:name="Active",type=string,JSONPath=`.status.activeNode`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Failovers",type=integer,JSONPath=`.status.failovers`
// +kubebuilder:printcolumn:name="Current",type=string,JSONPath=`.status.conditions[?(@.type=="Current")].status`,priority=1
// +kubebuilder:printcolumn:name="Moved",type=date,JSONPath=`.status.lastMove.at`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 52",message="the name must not be longer than 52 characters: it is a label of the application's pods"
type EdgeApp struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state of the application.
	Spec EdgeAppSpec `json:"spec"`
	// Status is how the application is.
	// +optional
	Status EdgeAppStatus `json:"status,omitempty"`
}

// EdgeAppList is a list of EdgeApps.
// +kubebuilder:object:root=true
type EdgeAppList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []EdgeApp `json:"items"`
}
