package creationorder

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Sandbox is a pod's sandbox as the container runtime has it.
type Sandbox struct {
	ID      string
	Pod     types.UID
	Attempt uint32 // counts a pod's sandboxes, from 0
	Created time.Time
	Ready   bool
}

// Container is one as the container runtime has it.
type Container struct {
	ID, Sandbox string
	Pod         types.UID
	Name        string
	Attempt     uint32 // counts a container's starts in the life of its pod, from 0
	Created     time.Time
	Dead        bool
	ExitCode    int32 // of a dead one of a pod with restartPolicy OnFailure; of others it doesn't matter
	// Unproven: it runs and waits for the success of a probe.
	Unproven bool
}

// Pod has the relevant fields of a pod of the device.
type Pod struct {
	Policy corev1.RestartPolicy
	Ended  bool // Succeeded or Failed: the kubelet starts none of its containers
	// Init are its init containers: all of them run again in a new sandbox, whatever they returned.
	Init []string
	// Unproven are the containers that wait for the success of a probe, by name.
	Unproven map[string]bool
}

// State is the input of Plan.
type State struct {
	Now time.Time
	// Unset: the clock has never been set since the boot. It will be, and then running containers
	// are probed.
	Unset      bool
	Pods       map[types.UID]Pod
	Sandboxes  []Sandbox
	Containers []Container
}

// Removal has the sandboxes and containers that the kubelet must not find. Containers of the
// sandboxes go with them.
type Removal struct {
	Sandboxes  []string
	Containers []string
	// Stops are containers that run, and that the kubelet shall start again.
	Stops []string
}

// patience is by how much the start of a running container may be later than now before it is
// stopped: a shorter time passes by itself, and a start may take as long.
const patience = 2 * time.Minute

// unset reports whether a clock is at a time before this program was written.
func unset(now time.Time) bool { return now.Year() < 2026 }

// Plan returns the dead that hide later ones, existing or future: the kubelet takes the one with
// the latest CreatedAt for a pod's last.
//
// A dead one hides its successors if its creation time is in the future, and has hidden them if one
// with a higher attempt is not younger. The dead that the kubelet still needs stay: succeeded
// containers of pods with restartPolicy OnFailure, and all of pods with Never, of ended pods, and
// of pods unknown to the device.
func Plan(s State) (r Removal) {
	gone := map[string]bool{}
	for _, b := range s.Sandboxes {
		hides := b.Created.After(s.Now) || slices.ContainsFunc(s.Sandboxes, func(o Sandbox) bool {
			return o.Pod == b.Pod && o.Attempt > b.Attempt && !o.Created.After(b.Created)
		})
		alive := slices.ContainsFunc(s.Containers, func(c Container) bool { return c.Sandbox == b.ID && (!c.Dead || s.needed(c)) })
		if !b.Ready && hides && !alive && s.restarts(b.Pod) {
			r.Sandboxes = append(r.Sandboxes, b.ID)
			gone[b.ID] = true
		}
	}
	for _, c := range s.Containers {
		hides := c.Created.After(s.Now) || slices.ContainsFunc(s.Containers, func(o Container) bool {
			return o.Pod == c.Pod && o.Name == c.Name && o.Attempt > c.Attempt && !o.Created.After(c.Created)
		})
		if c.Dead && hides && !gone[c.Sandbox] && s.restarts(c.Pod) && !s.needed(c) {
			r.Containers = append(r.Containers, c.ID)
		}
		if !s.Unset && !c.Dead && c.Unproven && c.Created.After(s.Now.Add(patience)) && s.restarts(c.Pod) && s.Pods[c.Pod].Policy == corev1.RestartPolicyAlways {
			r.Stops = append(r.Stops, c.ID)
		}
	}
	return r
}

// restarts reports whether the kubelet starts containers of a pod again.
func (s State) restarts(uid types.UID) bool {
	p, known := s.Pods[uid]
	return known && !p.Ended && p.Policy != corev1.RestartPolicyNever
}

// needed reports whether the kubelet would run a container again, that must not, if it were gone.
func (s State) needed(c Container) bool {
	p := s.Pods[c.Pod]
	return c.Dead && c.ExitCode == 0 && p.Policy == corev1.RestartPolicyOnFailure && !slices.Contains(p.Init, c.Name)
}

// newest returns the latest creation time; zero for an empty State.
func (s State) newest() (at time.Time) {
	for _, b := range s.Sandboxes {
		if b.Created.After(at) {
			at = b.Created
		}
	}
	for _, c := range s.Containers {
		if c.Created.After(at) {
			at = c.Created
		}
	}
	return at
}
