package drain

import (
	"fmt"
	"slices"
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

func (o *Operation) end(stage Stage, now time.Time, reason, message string) {
	o.Stage, o.EndedAt, o.Reason, o.Message = stage, now, reason, message
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

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
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

// believeRefusal is how long a refusal of rights is not believed, as everywhere in Skerry.
const believeRefusal = 30 * time.Second

// Apply records the result of an action. The caller drops results of actions that were no longer
// wanted.
func (s *State) Apply(a Action, res Result, f Facts, r Rules) {
	d := &s.Drain
	switch a.Verb {
	case Operate:
		s.operated(a.Operation, res, f)
		return
	case Fetch:
		s.fetched(a.Operation, res, f)
		return
	case Abort:
		s.aborted(a.Operation, res, f, r)
		return
	case Do:
		s.worked(a.Operation, res.Work, f)
		return
	}
	switch {
	case !res.Unauthorized:
		d.UnauthorizedSince = time.Time{}
	case d.UnauthorizedSince.IsZero():
		d.UnauthorizedSince = f.Now
		fallthrough
	case f.Now.Sub(d.UnauthorizedSince) < believeRefusal:
		res.Interrupted = true
	}
	if res.Interrupted {
		d.Message, d.Retry = "waits: the API gives no answer", f.Now.Add(r.RetryInterval)
		if res.Err != nil {
			d.Message += ": " + res.Err.Error()
		}
		if d.NoResponseSince.IsZero() {
			d.NoResponseSince = f.Now
		}
		return
	}
	d.Next, d.Retry, d.NoResponseSince = time.Time{}, time.Time{}, time.Time{}
	switch a.Verb {
	case Check:
		switch {
		case res.Err != nil:
			d.Message, d.Retry = "asking for other nodes: "+res.Err.Error(), f.Now.Add(r.RetryInterval)
		case res.Alone:
			d.Phase, d.Message = v1alpha1.DrainNotSupported, "no other schedulable node could take the pods"
		default:
			d.Phase, d.Message = v1alpha1.DrainStarting, ""
		}
	case Cordon:
		d.Phase, d.Message = v1alpha1.DrainCordoned, ""
		if res.Err != nil { // the last try may have worked unheard
			d.Phase, d.Message, d.Uncordon = v1alpha1.DrainFailedCordon, "cordoning the node: "+res.Err.Error(), true
		}
	case Uncordon:
		if res.Err != nil {
			d.Message, d.Retry = "taking back the cordon: "+res.Err.Error(), f.Now.Add(r.RetryInterval)
			return
		}
		d.Cordoned, d.Uncordon, d.AfterReady = false, false, false
	case Attempt:
		d.Attempting, d.Blocked, d.Message = false, res.Blocked, ""
		switch {
		case res.Err == nil:
			d.Phase, d.Blocked = v1alpha1.DrainComplete, nil
		case d.Attempts >= d.Limit:
			d.Phase, d.Uncordon = v1alpha1.DrainFailed, true
			d.Message = fmt.Sprintf("%d attempts failed, the last one: %v", d.Attempts, res.Err)
		default:
			d.Phase, d.Message, d.Next = v1alpha1.DrainRetrying, res.Err.Error(), f.Now.Add(d.Interval)
		}
	}
}

func (s *State) fetched(name string, res Result, f Facts) {
	o := s.find(name)
	if o == nil || o.Stage != Waiting {
		return
	}
	o.Output, o.Prefetch = res.Output, Prefetched
	if res.Err != nil {
		o.Prefetch, o.ExitCode = "", &res.ExitCode
		o.end(Failed, f.Now, "PrefetchFailed", res.Err.Error())
	}
}

func (s *State) aborted(name string, res Result, f Facts, r Rules) {
	o := s.find(name)
	switch {
	case o == nil || !o.inHook():
	case res.Err != nil:
		s.Drain.Retry = f.Now.Add(r.RetryInterval)
	default:
		o.Output, o.Prefetch = res.Output, ""
		o.end(Cancelled, f.Now, "Cancelled", "it was cancelled, and its hook was ended")
	}
}

func (s *State) operated(name string, res Result, f Facts) {
	o := s.find(name)
	if o == nil || o.Stage != Running {
		return
	}
	o.Output, o.ExitCode = res.Output, &res.ExitCode
	if res.Err != nil {
		o.end(Failed, f.Now, "HookFailed", res.Err.Error())
		return
	}
	o.Message = "the hook has ended; the next boot completes it"
	if o.Spec.Operation != v1alpha1.OperationReboot && o.Spec.Operation != v1alpha1.OperationShutdown {
		return
	}
	for i := range s.Operations { // one boot is enough for all operations that requested one
		if other := &s.Operations[i]; other.Stage == Waiting && other.Spec.Operation == o.Spec.Operation {
			other.Stage, other.BootBefore, other.Message, other.ExitCode = Running, f.Boot, "joined "+o.Name, &res.ExitCode
			other.Phase, other.Attempts, other.Blocked = o.Phase, o.Attempts, o.Blocked
		}
	}
}

// Force ends the drain by the operator's order: waiting operations proceed. With off it counts as
// not supported, else as complete.
func (s *State) Force(off bool, now time.Time) {
	d := &s.Drain
	d.Phase = v1alpha1.DrainComplete
	if off {
		d.Phase = v1alpha1.DrainNotSupported
	}
	d.Attempting, d.Blocked, d.Next, d.Message, d.Forced = false, nil, time.Time{}, "forced by an operator on the device", true
	if d.BeganAt.IsZero() {
		d.BeganAt = now
	}
}

// longest is the longest time for which an operation may be put off at once: a clock that was put
// back holds it up no longer.
const longest = 24 * time.Hour

// work chooses the operation to continue with while the drain waits. One in its trial comes first:
// the device has changed, and is not known to be healthy.
func (s *State) work(f Facts, a Action) Action {
	var chosen *Operation
	for i := range s.Operations {
		o := &s.Operations[i]
		if !o.own() || o.Stage != Waiting && o.Stage != Running {
			continue
		}
		if o.Work.tried() {
			chosen = o
			break
		}
		if o.Work != nil && o.Work.Next.After(f.Now) && o.Work.Next.Sub(f.Now) <= longest {
			a.Until = earliest(a.Until, o.Work.Next)
			continue
		}
		if chosen == nil {
			chosen = o
		}
	}
	if chosen == nil || a.Verb != Wait && !chosen.Work.tried() {
		return a
	}
	for i := range s.Operations { // the device is about to go down
		if o := &s.Operations[i]; o.Stage == Running && o.down() && o.Spec.Operation != v1alpha1.OperationImageUpdate {
			return a
		}
	}
	if chosen.Stage == Waiting {
		chosen.Stage, chosen.Message = Running, ""
	}
	return Action{Verb: Do, Operation: chosen.Name, Until: a.Until}
}

// worked takes how far an operation is, or how it has ended.
func (s *State) worked(name string, w Work, f Facts) {
	o := s.find(name)
	if o == nil || o.Stage != Running {
		return
	}
	o.Work, o.Message, o.Output = &w, w.Message, w.Output
	if w.Ended != "" {
		o.end(w.Ended, f.Now, w.Reason, w.Message)
	}
}

// again begins an ended operation anew, if its retry was raised.
func (o *Operation) again(retry int32, now time.Time) {
	if !o.own() || retry <= o.Spec.Retry {
		return
	}
	o.Spec.Retry = retry
	if o.Stage == Failed {
		o.Stage, o.Reason, o.Message, o.Output, o.EndedAt, o.Reported, o.Work, o.RequestedAt = Waiting, "", "", "", time.Time{}, false, nil, now.UTC()
	}
}
