package drain

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Rules are the numbers of the configuration.
type Rules struct {
	Off           bool          // drain is switched off on this device
	Attempts      int           // to drain, in all
	Interval      time.Duration // between two of them
	Timeout       time.Duration // default timeout of a hook
	ProceedAfter  time.Duration // without an API, for operations with Proceed
	RetryInterval time.Duration // after the API gave no answer
	Prefetch      bool          // a hook brings images to the device before anything is cordoned
}

// Stage is how far an operation is.
type Stage string

// The stages.
const (
	Waiting   Stage = "Waiting" // for the drain, or for its turn
	Running   Stage = "Running" // its hook was started; an operation that takes the device down ends with the next boot
	Done      Stage = "Done"
	Failed    Stage = "Failed"
	Cancelled Stage = "Cancelled"
)

// Prefetch is the progress of an ImageUpdate's image; "": not begun.
type Prefetch string

// The values of Prefetch.
const (
	Prefetching Prefetch = "Prefetching" // the hook was started
	Prefetched  Prefetch = "Prefetched"  // the image is on the device, and was checked
)

// Operation is one requested operation, in its stored form.
type Operation struct {
	Name        string                     `json:"name"`
	UID         types.UID                  `json:"uid,omitempty"`     // of the NodeOperation; "" for a local request that the cloud does not have yet
	Request     string                     `json:"request,omitempty"` // identifies a local request
	Spec        v1alpha1.NodeOperationSpec `json:"spec"`
	RequestedBy string                     `json:"requestedBy,omitempty"`
	RequestedAt time.Time                  `json:"requestedAt"`

	Stage   Stage  `json:"stage"`
	Reason  string `json:"reason,omitempty"` // one word, for conditions
	Message string `json:"message,omitempty"`
	// Asked: the drain that is running, or ran last, was begun for this operation too.
	Asked bool `json:"asked,omitempty"`
	// Unreachable is since when the API has been unreachable for it; zero: it is reachable.
	Unreachable time.Time `json:"unreachable,omitzero"`
	// Phase, Attempts and Blocked are the drain's as long as the operation waits, and stay as
	// they were then.
	Phase       v1alpha1.DrainPhase   `json:"phase,omitempty"`
	PhaseNumber int                   `json:"phaseNumber,omitempty"` // set by Status; not stored
	Attempts    int                   `json:"attempts,omitempty"`
	Blocked     []v1alpha1.BlockedPod `json:"blocked,omitempty"`

	BootBefore string    `json:"bootBefore,omitempty"`
	BootAfter  string    `json:"bootAfter,omitempty"`
	Output     string    `json:"output,omitempty"`
	ExitCode   *int      `json:"exitCode,omitempty"`
	EndedAt    time.Time `json:"endedAt,omitzero"`
	// Prefetch is how far the image is on its way to the device, where a hook brings it.
	Prefetch Prefetch `json:"prefetch,omitempty"`
	// Work is how far an operation is that needs no hook.
	Work *Work `json:"work,omitempty"`

	// Reported: the cloud has received the end. Gone: the NodeOperation was deleted.
	Reported bool `json:"reported,omitempty"`
	Gone     bool `json:"gone,omitempty"`
}

// Work is how far an operation is that needs no hook.
type Work struct {
	// Ended is Done or Failed, with the Reason; "": it continues.
	Ended   Stage  `json:"ended,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Warning precedes each message, also that of the end.
	Warning string `json:"warning,omitempty"`
	Output  string `json:"output,omitempty"`
	// Next is when it continues; zero: at once. It is not stored: waiting for a link or a registry
	// would wear out the disk.
	Next time.Time `json:"-"`
	// Waits: it waits for its window, and may be taken back; it is not stored.
	Waits bool `json:"-"`
	// Pauses is how often it was put off; it is not stored.
	Pauses int `json:"-"`
	// Tried: the device has switched, or is about to. It is no longer cancelled then.
	Tried bool `json:"tried,omitempty"`
	// Offline: there was no link when the trial began, so it can be healthy without one.
	Offline bool `json:"offline,omitempty"`
	// NoLinks is how many trials in a row went back without a link although the version before
	// them had one.
	NoLinks int `json:"noLinks,omitempty"`

	Upgrade *v1alpha1.UpgradeStatus `json:"upgrade,omitempty"`
	Checks  []v1alpha1.HealthCheck  `json:"checks,omitempty"`
	Images  []v1alpha1.PulledImage  `json:"images,omitempty"`
}

func (w *Work) tried() bool { return w != nil && w.Tried }

// ended reports whether the operation is in a final stage.
func (o *Operation) ended() bool { return o.Stage == Done || o.Stage == Failed || o.Stage == Cancelled }

// down reports whether the operation is one that the next boot completes.
func (o *Operation) down() bool { return o.Spec.Operation != v1alpha1.OperationDrain && !o.own() }

// own reports whether edgecore carries the operation out itself, without a drain and without a
// hook.
func (o *Operation) own() bool { return v1alpha1.RightOf(o.Spec.Operation) != "" }

// inHook reports whether a hook of the operation was started and has not ended, as far as is known.
func (o *Operation) inHook() bool {
	return !o.own() && (o.Stage == Running && o.ExitCode == nil || o.Stage == Waiting && o.Prefetch == Prefetching)
}

// needsImage reports whether the operation has to wait for its image before it may ask for a drain.
func (o *Operation) needsImage(r Rules) bool {
	return r.Prefetch && o.Spec.Operation == v1alpha1.OperationImageUpdate && o.Stage == Waiting && o.Prefetch != Prefetched
}

// holds reports whether the operation keeps the node drained: also a drain that is done, until it
// is cancelled or the device boots. An operation completed without a complete drain does not hold
// it.
func (o *Operation) holds() bool {
	return o.Stage == Waiting || o.Stage == Running ||
		o.Stage == Done && !o.down() && !o.own() && !o.Spec.Cancel && o.BootAfter == "" && o.Phase == v1alpha1.DrainComplete
}

// Drain is the one worker's state.
type Drain struct {
	Phase             v1alpha1.DrainPhase `json:"phase"`
	PhaseNumber       int                 `json:"phaseNumber,omitempty"` // set by Status; not stored
	Attempts          int                 `json:"attempts,omitempty"`    // the running one included
	Attempting        bool                `json:"attempting,omitempty"`  // attempt number Attempts has begun and not ended
	Next              time.Time           `json:"next,omitzero"`         // no attempt is made before
	Retry             time.Time           `json:"-"`                     // no API call before this time; not stored, or an API that is down would wear out the disk
	UnauthorizedSince time.Time           `json:"-"`                     // since when the API refuses by 403, zero where it does not
	// Timeout of an attempt, Limit of attempts and the Interval between two of them are fixed when
	// the drain begins: later changes of the configuration don't apply.
	Timeout  time.Duration `json:"timeout,omitempty"`
	Limit    int           `json:"limit,omitempty"`
	Interval time.Duration `json:"interval,omitempty"`
	// NoResponseSince is since when the API has given no answer although it could be asked;
	// zero: it answers.
	NoResponseSince time.Time             `json:"noResponseSince,omitzero"`
	Blocked         []v1alpha1.BlockedPod `json:"blocked,omitempty"`
	Message         string                `json:"message,omitempty"`
	BeganAt         time.Time             `json:"beganAt,omitzero"`
	Boot            string                `json:"boot,omitempty"`   // the boot that this is about
	Forced          bool                  `json:"forced,omitempty"` // the phase is an operator's word, and is not doubted

	// Cordoned: we have set, or were about to set, our cordon. Uncordon: it has to be removed;
	// AfterReady: not before the node is Ready.
	Cordoned   bool `json:"cordoned,omitempty"`
	Uncordon   bool `json:"uncordon,omitempty"`
	AfterReady bool `json:"afterReady,omitempty"`
}

// State is the stored state.
type State struct {
	Drain      Drain       `json:"drain"`
	Operations []Operation `json:"operations,omitempty"` // in the order in which they were asked for
}

// clone makes a deep copy of the fields that are changed in place.
func (s State) clone() State {
	s.Operations = slices.Clone(s.Operations)
	return s
}

func (s *State) find(name string) *Operation {
	for i := range s.Operations {
		if s.Operations[i].Name == name {
			return &s.Operations[i]
		}
	}
	return nil
}

// Deferred reports whether an operation waits at a phase of the drain, and whether it also asks for
// a drain.
func Deferred(phase v1alpha1.DrainPhase) (wait, ask bool) {
	switch phase {
	case v1alpha1.DrainNotRequested, v1alpha1.DrainFailedCordon, v1alpha1.DrainFailed:
		return true, true
	case v1alpha1.DrainRequested, v1alpha1.DrainStarting, v1alpha1.DrainCordoned, v1alpha1.DrainRetrying:
		return true, false
	}
	return false, false // Unknown, NotSupported, Complete
}

// busy reports whether a drain is going on.
func busy(phase v1alpha1.DrainPhase) bool {
	wait, ask := Deferred(phase)
	return wait && !ask
}

// Unfinished counts the operations that have not ended.
func Unfinished(s State) (n int) {
	for i := range s.Operations {
		if !s.Operations[i].ended() {
			n++
		}
	}
	return n
}
