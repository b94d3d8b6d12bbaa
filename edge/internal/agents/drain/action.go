package drain

import (
	"time"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Facts are the input of the core.
type Facts struct {
	Now       time.Time
	Boot      string // unique ID of the device's boot
	Reachable bool   // the API can be asked
	Ready     bool   // the node is Ready, as far as is known
	Open      bool   // the node was seen schedulable: whatever cordon there was has been removed
}

// Verb is the next action.
type Verb string

// The verbs.
const (
	Wait     Verb = "wait"     // for an event, or for Until
	Check    Verb = "check"    // whether any other node could take the pods
	Cordon   Verb = "cordon"   // set our cordon, unless there is one
	Attempt  Verb = "attempt"  // hand over and evict
	Uncordon Verb = "uncordon" // take back our cordon, and no other
	Fetch    Verb = "fetch"    // run the prefetch hook of Operation
	Operate  Verb = "operate"  // run the hook of Operation
	Abort    Verb = "abort"    // end the hook of Operation, which was cancelled
	Do       Verb = "do"       // carry Operation out, which needs no hook
)

// Action is one thing to do.
type Action struct {
	Verb      Verb
	Operation string        // for Fetch, Operate, Abort and Do
	Timeout   time.Duration // for Attempt
	Until     time.Time     // when to ask again, for Wait and Do; zero: only after an event
}

// Result is the result of an action.
type Result struct {
	Err error
	// Interrupted: the API gave no answer. That is no evidence about the node, and counts as no
	// attempt.
	Interrupted bool
	// Unauthorized: the API refused by 401 or 403. Right after its start it may not have loaded
	// RBAC yet.
	Unauthorized bool
	Alone        bool // of Check
	Blocked      []v1alpha1.BlockedPod
	Output       string // of Operate
	ExitCode     int
	Work         Work // of Do
}

func (o *Operation) end(stage Stage, now time.Time, reason, message string) {
	o.Stage, o.EndedAt, o.Reason, o.Message = stage, now, reason, message
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
