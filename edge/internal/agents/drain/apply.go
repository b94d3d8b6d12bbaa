package drain

import (
	"fmt"
	"time"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

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
