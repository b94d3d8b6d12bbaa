package campaign

import (
	"fmt"
	"io"
	"time"
)

// Options set the size of a campaign. All must be set, unless noted.
type Options struct {
	Seed   uint64
	Clouds int
	Edges  int
	Pods   int           // on each edge
	Length time.Duration // of the schedule
	Pause  time.Duration // between two faults, on average
	// Bound is how long the system may take after the last fault until all have the same.
	Bound  time.Duration
	Faults []Fault
	// Steps are played in the place of those that the seed gives, where there are any. One whose
	// things are still being repaired waits.
	Steps []Step
	// Dir is the campaign's own; the files in it explain a failure.
	Dir string
	// Out gets a line for each fault.
	Out io.Writer
	// UntilFound ends the schedule once something is found.
	UntilFound bool
	// Calm is how many of the edges, the last ones, have no fault of their own: they must stay
	// Ready.
	Calm int
	// Keepalive is that of the edges in their order; nil: 1 s for all, and as little for cloudcore.
	Keepalive []time.Duration
	// Plane is further flags of kubeplane; may be nil.
	Plane []string
	// Changed are programs that take the place of the repository's own, by their names; see
	// BuildChanged. May be nil.
	Changed map[string]string
	// Env is the environment of cloudcores and edgecores in addition to our own; may be nil.
	Env []string
}

// Short is a campaign of minutes.
func Short(seed uint64) Options {
	return Options{
		Seed: seed, Clouds: 2, Edges: 3, Pods: 2, Length: 45 * time.Second, Pause: 2 * time.Second, Bound: 60 * time.Second, Faults: AllFaults(), Out: io.Discard,
	}
}

// Long is a campaign of that many minutes.
func Long(seed uint64, minutes int) Options {
	o := Short(seed)
	o.Edges, o.Length, o.Bound = 20, time.Duration(minutes)*time.Minute, 3*time.Minute
	return o
}

// A Step is one fault of a schedule.
type Step struct {
	At, For time.Duration
	Fault   Fault
	Target  int // of the edges or cloudcores, from 0
}

func (s Step) String() string {
	return fmt.Sprintf("%v %s %d for %v", s.At.Round(time.Millisecond), s.Fault, s.Target, s.For.Round(time.Millisecond))
}

// A Fault is a way in which something breaks.
type Fault string

// The faults of a campaign. Each is over after a time.
const (
	KillCloud  Fault = "kill-cloud"  // SIGKILL of a cloudcore, which is started again
	PauseCloud Fault = "pause-cloud" // SIGSTOP, SIGCONT
	KillEdge   Fault = "kill-edge"   // SIGKILL of an edgecore, which is started again
	PauseEdge  Fault = "pause-edge"
	BadRecord  Fault = "bad-record"  // the same for one record, an event's; it starts without a link
	Full       Fault = "full"        // the disk of an edgecore has no room; needs root
	BadPage    Fault = "bad-page"    // SIGKILL of an edgecore, one bit of its store's file is flipped, it is started again
	Rot        Fault = "rot"         // one bit of an edgecore's store is flipped while it runs
	Cut        Fault = "cut"         // connections of an edge break, new ones are refused
	Flap       Fault = "flap"        // an edge's link breaks again and again, soon after it has come up
	Silent     Fault = "silent"      // everything on an edge's link vanishes
	DeleteNode Fault = "delete-node" // an edge's link breaks, and its Node is deleted in the meantime
	Thin       Fault = "thin"        // an edge's link carries 4 KiB a second
	Refuse     Fault = "refuse"      // kube-apiserver answers a cloudcore 429, 500, 409 or not at all, one time in three
	Deny       Fault = "deny"        // kube-apiserver answers 403 to a cloudcore's requests as a node, as with an authorizer that lags
	Down       Fault = "down"        // kube-apiserver answers a cloudcore 503 at once, or breaks the connection
	Isolate    Fault = "isolate"     // a cloudcore can't reach kube-apiserver
	Lag        Fault = "lag"         // the events of a cloudcore's watches arrive late
	Late       Fault = "late"        // writes of a cloudcore are on their way when it is stopped (SIGSTOP), and arrive much later
	Clock      Fault = "clock"       // SIGKILL of an edgecore, which then runs with another time of day, and again with the right one
	KillPlane  Fault = "kill-plane"  // SIGKILL of kube-apiserver and etcd, which are started again
	OlderCopy  Fault = "older-copy"  // etcd's data is replaced by a copy that was made when the step began

	// Those that need a trial.
	KillRuntime Fault = "kill-runtime" // SIGKILL of a device's containerd, which is started again
	Reboot      Fault = "reboot"       // the power of a device is cut, and it boots without a link
	Shutdown    Fault = "shutdown"     // a device shuts down in order, one time in two without a link, and boots
	Pressure    Fault = "pressure"     // the kubelet of a device without a link takes its disk for full
)

// AllFaults are those that a campaign draws from.
func AllFaults() []Fault {
	return []Fault{KillCloud, PauseCloud, KillEdge, PauseEdge, BadPage, BadRecord, Rot, Full, Cut, Flap, Silent, Thin, DeleteNode, Refuse, Deny, Down, Isolate, Lag, Late, Clock, KillPlane, OlderCopy}
}
