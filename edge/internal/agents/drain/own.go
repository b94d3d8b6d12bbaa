package drain

import (
	"time"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

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
		if next := o.Work.next(f.Now); !next.IsZero() {
			a.Until = earliest(a.Until, next)
			continue
		}
		if chosen == nil {
			chosen = o
		}
	}
	if chosen == nil || a.Verb != Wait && !chosen.Work.tried() {
		return a
	}
	if next := chosen.Work.next(f.Now); !next.IsZero() { // of a trial; others are not chosen
		a.Until = earliest(a.Until, next)
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

// next is the time until which the work is put off; zero: it is not.
func (w *Work) next(now time.Time) time.Time {
	if w == nil || !w.Next.After(now) || w.Next.Sub(now) > longest {
		return time.Time{}
	}
	return w.Next
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
