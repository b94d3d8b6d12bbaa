package drain

import (
	"slices"
	"time"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Step updates the state by the facts and returns the next action. The state must be saved before
// the action begins. Step may be repeated: its decisions are not made again.
func (s *State) Step(f Facts, r Rules) Action {
	s.boot(f)
	s.unreachable(f)
	s.cancel(f)
	s.settle(f, r)
	s.ask(f, r)
	s.settle(f, r) // where no drain is needed after all
	s.release(r)
	s.forget()
	for i := range s.Operations {
		if o := &s.Operations[i]; o.Stage == Waiting && !o.own() {
			o.Phase, o.Attempts, o.Blocked = s.Drain.Phase, s.Drain.Attempts, s.Drain.Blocked
		}
	}
	a := s.work(f, s.next(f, r))
	s.explain(r)
	return a
}

// explain sets the reason of each waiting operation, if that is not the drain.
func (s *State) explain(r Rules) {
	hook, boot := "", ""
	for i := range s.Operations {
		switch o := &s.Operations[i]; {
		case o.inHook():
			hook = o.Name
		case o.Stage == Running && o.down() && o.Spec.Operation != v1alpha1.OperationImageUpdate:
			boot = o.Name
		}
	}
	for i := range s.Operations {
		o := &s.Operations[i]
		switch {
		case o.inHook() && o.Spec.Cancel:
			o.Message = "it was cancelled: its hook is being ended"
		case o.inHook() && o.Stage == Waiting:
			o.Message = "its image is being fetched"
		case o.inHook():
			o.Message = "its hook runs"
		case o.Stage != Waiting:
		case o.own():
			o.Message = "waits for other operations"
		case hook != "":
			o.Message = "waits for the end of the hook of " + hook
		case boot != "":
			o.Message = "waits for the boot that " + boot + " asked for"
		case o.needsImage(r):
			o.Message = "waits for the end of the drain, then its image is fetched"
		default:
			o.Message = "" // the drain's own message has it
		}
	}
}

// boot notices that the device has booted since.
func (s *State) boot(f Facts) {
	d := &s.Drain
	if d.Phase == "" {
		d.Phase = v1alpha1.DrainNotRequested
	}
	before := d.Boot
	d.Boot = f.Boot
	if before == "" || before == f.Boot || f.Boot == "" {
		return
	}
	drained := false
	for i := range s.Operations {
		o := &s.Operations[i]
		switch {
		case o.Stage == Running && o.down():
			o.BootAfter = f.Boot
			o.end(Done, f.Now, "Booted", "the device has booted")
		case o.Stage == Waiting && o.Spec.Operation == v1alpha1.OperationReboot:
			// Whatever the cause of the reboot: a second one would be useless.
			o.BootBefore, o.BootAfter = before, f.Boot
			o.end(Done, f.Now, "Booted", "the device was rebooted before the operation's turn had come")
			drained = drained || o.Asked
		case o.Stage == Done && !o.down() && !o.own() && o.BootAfter == "":
			o.BootAfter = f.Boot
		}
	}
	waits := slices.ContainsFunc(s.Operations, func(o Operation) bool { return o.Stage == Waiting })
	if busy(d.Phase) && (waits || !drained) {
		return // the device was stopped by another cause: waiting operations keep waiting
	}
	d.Phase, d.Attempts, d.Attempting, d.Blocked, d.Message, d.Forced = v1alpha1.DrainNotRequested, 0, false, nil, "", false
	if d.Cordoned {
		d.Uncordon, d.AfterReady = true, true
	}
}

// unreachable keeps since when an operation has had no API.
func (s *State) unreachable(f Facts) {
	for i := range s.Operations {
		o := &s.Operations[i]
		switch {
		case o.Stage != Waiting:
		case f.Reachable && s.Drain.NoResponseSince.IsZero():
			o.Unreachable = time.Time{}
		case o.Unreachable.IsZero() || o.Unreachable.After(f.Now): // or the clock was put back
			o.Unreachable = f.Now
		}
	}
}

func (s *State) cancel(f Facts) {
	for i := range s.Operations {
		o := &s.Operations[i]
		switch {
		case !o.Spec.Cancel:
		case o.inHook(): // next has that ended first
		case o.own() && o.Stage == Running && !o.Work.tried():
			o.end(Cancelled, f.Now, "Cancelled", "it was cancelled before the device had switched")
		case o.Stage == Waiting:
			o.end(Cancelled, f.Now, "Cancelled", "it was cancelled before it had gone ahead")
		case o.Stage == Running && o.ExitCode != nil:
			o.end(Cancelled, f.Now, "Cancelled", "its hook had ended, but the device did not boot")
		}
	}
}

// settle ends the operations that need no further action.
func (s *State) settle(f Facts, r Rules) {
	for i := range s.Operations {
		o := &s.Operations[i]
		if o.Stage != Waiting {
			continue
		}
		if s.ready(o, f, r) {
			if o.Spec.Operation == v1alpha1.OperationDrain {
				o.Phase, o.Attempts, o.Blocked = s.Drain.Phase, s.Drain.Attempts, s.Drain.Blocked
				o.BootBefore = f.Boot
				reason := "Drained"
				if o.Phase != v1alpha1.DrainComplete {
					reason = "NotDrained" // and need not be: alone, switched off, best effort, Proceed
				}
				o.end(Done, f.Now, reason, s.Drain.Message)
			}
			continue
		}
		if wait, ask := Deferred(s.Drain.Phase); o.Asked && wait && ask && s.Drain.Phase != v1alpha1.DrainNotRequested {
			o.Phase, o.Attempts, o.Blocked = s.Drain.Phase, s.Drain.Attempts, s.Drain.Blocked
			o.end(Failed, f.Now, string(s.Drain.Phase), s.Drain.Message)
		}
	}
}

// ready reports whether an operation may go ahead.
func (s *State) ready(o *Operation, f Facts, r Rules) bool {
	if o.needsImage(r) {
		return false
	}
	if o.Spec.Drain == v1alpha1.DrainSkip {
		return true
	}
	wait, ask := Deferred(s.Drain.Phase)
	switch {
	case !wait && !s.stale(o, f):
		return true
	case o.Spec.Drain == v1alpha1.DrainBestEffort && o.Asked && ask && s.Drain.Phase != v1alpha1.DrainNotRequested:
		return true
	case o.Spec.WhenUnreachable == v1alpha1.UnreachableProceed && !o.Unreachable.IsZero() && f.Now.Sub(o.Unreachable) >= r.ProceedAfter:
		return true
	}
	return false
}

// stale reports whether an ended drain does not apply to a later operation: the node takes pods
// again.
func (s *State) stale(o *Operation, f Facts) bool {
	return s.Drain.Phase == v1alpha1.DrainComplete && !o.Asked && f.Open && !s.Drain.Forced
}

// ask begins a drain if one is needed; later operations join it.
func (s *State) ask(f Facts, r Rules) {
	d := &s.Drain
	for i := range s.Operations {
		o := &s.Operations[i]
		if o.Stage != Waiting || o.needsImage(r) || s.ready(o, f, r) || o.Asked && busy(d.Phase) {
			continue
		}
		if _, ask := Deferred(d.Phase); ask || s.stale(o, f) {
			*d = Drain{
				Phase: v1alpha1.DrainRequested, BeganAt: f.Now, Boot: d.Boot, Cordoned: d.Cordoned, Timeout: r.Timeout, Limit: r.Attempts, Interval: r.Interval,
				NoResponseSince: d.NoResponseSince,
			}
			if t := o.Spec.DrainTimeout; t != nil && t.Duration > 0 {
				d.Timeout = t.Duration
			}
			if r.Off {
				d.Phase, d.Message = v1alpha1.DrainNotSupported, "drain is switched off on this device"
			}
		}
		o.Asked = true
	}
}

// release ends a drain that no operation needs.
func (s *State) release(r Rules) {
	d := &s.Drain
	held := slices.ContainsFunc(s.Operations, func(o Operation) bool { return o.holds() && o.Spec.Drain != v1alpha1.DrainSkip && !o.needsImage(r) })
	switch {
	case !held && (busy(d.Phase) || d.Phase == v1alpha1.DrainComplete || d.Phase == v1alpha1.DrainNotSupported):
		d.Phase, d.Attempts, d.Attempting, d.Blocked, d.Message, d.Next = v1alpha1.DrainNotRequested, 0, false, nil, "", time.Time{}
		d.Forced, d.Uncordon = false, d.Uncordon || d.Cordoned
	case !held && d.Cordoned: // after a failure, or one that was left over
		d.Uncordon = true
	}
}

// maxEnded bounds the operations that are over and still reported in full. Beyond it the oldest are
// dropped, once the NodeOperation is deleted too; until then their names and uids stay, since a
// forgotten one would be taken for a new one.
const maxEnded = 32

func (s *State) forget() {
	ended := 0
	for i := range s.Operations {
		if o := &s.Operations[i]; o.ended() && !o.holds() {
			ended++
		}
	}
	for i := range s.Operations {
		o := &s.Operations[i]
		if ended <= maxEnded {
			break
		}
		if o.ended() && !o.holds() {
			ended--
			if o.Reported || o.UID == "" {
				o.Output, o.Blocked, o.Message = "", nil, ""
			}
		}
	}
	over := max(0, s.count((*Operation).ended)-maxEnded)
	s.Operations = slices.DeleteFunc(s.Operations, func(o Operation) bool {
		if over == 0 || !o.ended() || o.holds() || o.UID != "" && !o.Gone {
			return false
		}
		over--
		return true
	})
}

func (s *State) count(which func(*Operation) bool) int {
	n := 0
	for i := range s.Operations {
		if which(&s.Operations[i]) {
			n++
		}
	}
	return n
}

// cutOff is the message of a drain that waits for the link.
const cutOff = "waits: the API can't be reached"

// next returns the next action.
func (s *State) next(f Facts, r Rules) Action {
	d := &s.Drain
	// A clock that was set back delays no action for longer than intended.
	later := func(at time.Time, atMost time.Duration) bool { return f.Now.Before(at) && at.Sub(f.Now) <= atMost }
	for i := range s.Operations {
		switch o := &s.Operations[i]; { // edgecore ended in the middle of its hook, or that is being run
		case !o.inHook():
		case o.Spec.Cancel && later(d.Retry, r.RetryInterval):
			return Action{Verb: Wait, Until: d.Retry}
		case o.Spec.Cancel:
			return Action{Verb: Abort, Operation: o.Name}
		case o.Stage == Waiting:
			return Action{Verb: Fetch, Operation: o.Name}
		default:
			return Action{Verb: Operate, Operation: o.Name}
		}
	}
	if a, ok := s.operate(f, r); ok {
		return a
	}
	if a, ok := s.fetch(r); ok {
		return a
	}
	until := s.deadline(r)
	if !f.Reachable {
		if busy(d.Phase) {
			d.Message = cutOff
		}
		return Action{Verb: Wait, Until: until}
	}
	if d.Message == cutOff {
		d.Message = ""
	}
	if later(d.Retry, r.RetryInterval) {
		return Action{Verb: Wait, Until: earliest(until, d.Retry)}
	}
	if d.Uncordon && (!d.AfterReady || f.Ready) {
		return Action{Verb: Uncordon}
	}
	if later(d.Next, d.Interval) {
		return Action{Verb: Wait, Until: earliest(until, d.Next)}
	}
	switch d.Phase {
	case v1alpha1.DrainRequested:
		return Action{Verb: Check}
	case v1alpha1.DrainStarting:
		d.Cordoned = true // kept before it is done
		return Action{Verb: Cordon}
	case v1alpha1.DrainCordoned, v1alpha1.DrainRetrying:
		if !d.Attempting {
			d.Attempts, d.Attempting = d.Attempts+1, true
			for i := range s.Operations {
				if o := &s.Operations[i]; o.Stage == Waiting {
					o.Attempts = d.Attempts
				}
			}
		}
		return Action{Verb: Attempt, Timeout: d.Timeout}
	}
	return Action{Verb: Wait, Until: until}
}

// operate starts the next operation that may proceed. Operations that take the device down come
// after the others, and no operation follows them before the boot.
func (s *State) operate(f Facts, r Rules) (Action, bool) {
	var chosen *Operation
	for i := range s.Operations {
		o := &s.Operations[i]
		if o.Stage == Running && o.down() {
			if o.Spec.Operation != v1alpha1.OperationImageUpdate {
				return Action{}, false // the device is about to go down
			}
			continue
		}
		if o.Stage != Waiting || o.own() || !s.ready(o, f, r) {
			continue
		}
		if chosen == nil || chosen.Spec.Operation != v1alpha1.OperationImageUpdate && o.Spec.Operation == v1alpha1.OperationImageUpdate {
			chosen = o
		}
	}
	if chosen == nil {
		return Action{}, false
	}
	chosen.Stage, chosen.BootBefore, chosen.Message = Running, f.Boot, ""
	chosen.Phase, chosen.Attempts, chosen.Blocked = s.Drain.Phase, s.Drain.Attempts, s.Drain.Blocked
	return Action{Verb: Operate, Operation: chosen.Name}, true
}

// fetch begins to fetch an image. A drain that is under way is not held up by that.
func (s *State) fetch(r Rules) (Action, bool) {
	if busy(s.Drain.Phase) {
		return Action{}, false
	}
	for i := range s.Operations {
		if o := &s.Operations[i]; o.needsImage(r) {
			o.Prefetch = Prefetching
			return Action{Verb: Fetch, Operation: o.Name}, true
		}
	}
	return Action{}, false
}

// deadline is when an operation that waits for the API may go ahead without it.
func (s *State) deadline(r Rules) time.Time {
	var at time.Time
	for _, o := range s.Operations {
		if o.Stage == Waiting && o.Spec.WhenUnreachable == v1alpha1.UnreachableProceed && !o.Unreachable.IsZero() {
			at = earliest(at, o.Unreachable.Add(r.ProceedAfter))
		}
	}
	return at
}
