package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Request asks for an operation. It is on the disk when Request returns nil. A repeated request
// with the same uid is no error.
func (a *Agent) Request(ctx context.Context, o Operation) error {
	if err := a.valid(&o); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return a.call(ctx, func(s *State, f *Facts) error {
		o.Stage, o.RequestedAt = Waiting, f.Now.UTC()
		return s.add(o, f.Now)
	})
}

// add adds an operation. An existing one is no error.
func (s *State) add(o Operation, now time.Time) error {
	if have := s.find(o.Name); have != nil {
		if o.UID != "" && have.UID == o.UID || o.Request != "" && have.Request == o.Request {
			have.UID = o.UID
			have.Spec.Cancel = have.Spec.Cancel || o.Spec.Cancel
			have.again(o.Spec.Retry, now) // no other field can be changed
			return nil
		}
		if !have.ended() || have.holds() {
			return fmt.Errorf("%s: %w", o.Name, ErrExists)
		}
		s.Operations = slices.DeleteFunc(s.Operations, func(x Operation) bool { return x.Name == o.Name })
	}
	if len(s.Operations) >= maxKept || !o.ended() && s.count((*Operation).holds) >= maxOperations {
		return ErrFull
	}
	s.Operations = append(s.Operations, o)
	return nil
}

// Refuse records an operation that can't be carried out, so that it is reported and never begun.
// Done is for one that was carried out before anything was kept here.
func (a *Agent) Refuse(ctx context.Context, o Operation, stage Stage, reason, message string) error {
	return a.call(ctx, func(s *State, f *Facts) error {
		o.RequestedAt = f.Now.UTC()
		o.end(stage, f.Now.UTC(), reason, message)
		return s.add(o, f.Now)
	})
}

// Adopt notes the NodeOperation that the cloud has for a request made on the device.
func (a *Agent) Adopt(ctx context.Context, name, request string, uid types.UID) error {
	return a.change(ctx, name, func(o *Operation) {
		if o.Request == request {
			o.UID = uid
		}
	})
}

// Reported records that the cloud has received how an operation ended.
func (a *Agent) Reported(ctx context.Context, name string, uid types.UID) error {
	return a.change(ctx, name, func(o *Operation) { o.Reported = o.UID == uid })
}

// ReportAgain has how operations ended reported again: the cloud may have lost it.
func (a *Agent) ReportAgain(ctx context.Context) error {
	return a.call(ctx, func(s *State, _ *Facts) error {
		for i := range s.Operations {
			s.Operations[i].Reported = false
		}
		return nil
	})
}

// Gone records that the NodeOperation was deleted: its operation is cancelled.
func (a *Agent) Gone(ctx context.Context, name string, uid types.UID) error {
	return a.change(ctx, name, func(o *Operation) {
		if o.UID == uid {
			o.Gone, o.Spec.Cancel = true, true
		}
	})
}

func (a *Agent) change(ctx context.Context, name string, do func(*Operation)) error {
	return a.call(ctx, func(s *State, _ *Facts) error {
		if o := s.find(name); o != nil {
			do(o)
		}
		return nil
	})
}

func (a *Agent) valid(o *Operation) error {
	if problems := validation.IsDNS1123Subdomain(o.Name); len(problems) > 0 {
		return fmt.Errorf("name %q: %s", o.Name, strings.Join(problems, "; "))
	}
	if o.Spec.NodeName != "" && o.Spec.NodeName != a.config.NodeName {
		return fmt.Errorf("it is for node %s, this is %s", o.Spec.NodeName, a.config.NodeName)
	}
	o.Spec.NodeName = a.config.NodeName
	switch o.Spec.Operation {
	case v1alpha1.OperationDrain:
	case v1alpha1.OperationReboot, v1alpha1.OperationShutdown, v1alpha1.OperationImageUpdate:
		if err := a.config.Hooks.Check(string(o.Spec.Operation)); err != nil {
			return err
		}
	case v1alpha1.OperationUpgrade, v1alpha1.OperationConfig, v1alpha1.OperationImagePull:
		o.Spec.Drain = v1alpha1.DrainSkip
		if a.config.Works == nil {
			return fmt.Errorf("operation %s is switched off on this device", o.Spec.Operation)
		}
		if err := a.config.Works.Check(o); err != nil {
			return err
		}
	default:
		return fmt.Errorf("this edgecore has no operation %.32q: it may be older than the operation", o.Spec.Operation)
	}
	if t := o.Spec.DrainTimeout; t != nil && t.Duration < time.Second {
		return fmt.Errorf("drainTimeout %v: must be at least 1s", t.Duration)
	}
	if (o.Spec.Operation == v1alpha1.OperationImageUpdate) != (o.Spec.Image != "") {
		return errors.New("image: required for ImageUpdate, and not allowed for other operations")
	}
	if o.Spec.Drain == "" {
		o.Spec.Drain = v1alpha1.DrainRequired
	}
	if o.Spec.WhenUnreachable == "" {
		o.Spec.WhenUnreachable = v1alpha1.UnreachableDefer
	}
	if !slices.Contains([]v1alpha1.DrainPolicy{v1alpha1.DrainRequired, v1alpha1.DrainBestEffort, v1alpha1.DrainSkip}, o.Spec.Drain) {
		return fmt.Errorf("there is no drain policy %q", o.Spec.Drain)
	}
	if !slices.Contains([]v1alpha1.UnreachablePolicy{v1alpha1.UnreachableDefer, v1alpha1.UnreachableProceed}, o.Spec.WhenUnreachable) {
		return fmt.Errorf("there is no %q for an API that can't be reached", o.Spec.WhenUnreachable)
	}
	return nil
}

// Cancel ends an operation that has not been carried out, its hook if that runs, and a drain that
// no other operation needs.
func (a *Agent) Cancel(ctx context.Context, name string) error {
	return a.call(ctx, func(s *State, _ *Facts) error {
		o := s.find(name)
		switch {
		case o == nil:
			return fmt.Errorf("%s: %w", name, ErrNotFound)
		case !o.holds():
			return fmt.Errorf("%s: %w", name, ErrOver)
		}
		o.Spec.Cancel = true
		return nil
	})
}

// Force ends the drain that an operation waits for: as complete, or as off. The worker stops, and
// the operation proceeds.
func (a *Agent) Force(ctx context.Context, name string, off bool) error {
	return a.call(ctx, func(s *State, f *Facts) error {
		o := s.find(name)
		switch {
		case o == nil:
			return fmt.Errorf("%s: %w", name, ErrNotFound)
		case o.Stage != Waiting:
			return fmt.Errorf("%s: %w", name, ErrOver)
		}
		s.Force(off, f.Now)
		return nil
	})
}

// Reachable sets whether the API can be asked: there is a link. It can't before the first call.
func (a *Agent) Reachable(ctx context.Context, yes bool) error {
	return a.call(ctx, func(_ *State, f *Facts) error { f.Reachable = yes; return nil })
}

// Node sets the state of the own Node: whether it is Ready, whether it was seen schedulable, and
// whether it was seen with our cordon. A cordon of ours that is not remembered, since the store was
// lost, is one that no other client would remove.
func (a *Agent) Node(ctx context.Context, ready, open, ours bool) error {
	return a.call(ctx, func(s *State, f *Facts) error {
		f.Ready, f.Open = ready, open
		s.Drain.Cordoned = s.Drain.Cordoned || ours
		return nil
	})
}

func (a *Agent) call(ctx context.Context, do func(*State, *Facts) error) error {
	a.mu.Lock()
	ended := a.ended
	a.mu.Unlock()
	if ended == nil {
		return errNotRunning
	}
	c := call{do, make(chan error, 1)}
	select {
	case a.inbox <- c:
	case <-ended:
		return errNotRunning
	case <-ctx.Done():
		return fmt.Errorf("asking the drain agent: %w", context.Cause(ctx))
	}
	return <-c.done
}
