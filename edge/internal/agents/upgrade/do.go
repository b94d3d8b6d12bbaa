package upgrade

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
)

// Check implements drain.Works.
func (w *Works) Check(o *drain.Operation) error {
	s := o.Spec
	switch s.Operation {
	case v1alpha1.OperationUpgrade:
		if s.Upgrade == nil {
			return errors.New("upgrade is needed by operation Upgrade")
		}
	case v1alpha1.OperationConfig:
		if s.Config == nil || len(s.Config.Patch) > v1alpha1.MaxConfigPatch {
			return fmt.Errorf("config.patch is needed by operation Config, of at most %d bytes", v1alpha1.MaxConfigPatch)
		}
	case v1alpha1.OperationImagePull:
		if s.ImagePull == nil {
			return errors.New("imagePull is needed by operation ImagePull")
		}
	}
	if s.Operation != v1alpha1.OperationImagePull && !w.config.Launched {
		return errors.New("this edgecore was not started by skerry-launch: the unit of the package does that")
	}
	if s.Window != nil {
		if _, err := windowOf(*s.Window, w.config.Zone); err != nil {
			return fmt.Errorf("window: %w", err)
		}
	}
	return nil
}

// Do implements drain.Works.
func (w *Works) Do(ctx context.Context, o drain.Operation, report func(drain.Work)) drain.Work {
	if o.Spec.Operation == v1alpha1.OperationImagePull {
		return w.pull(ctx, o, report)
	}
	work := drain.Work{Upgrade: &v1alpha1.UpgradeStatus{From: w.config.Version}}
	if o.Work != nil {
		work = *o.Work
		work.Next = time.Time{}
		if u := work.Upgrade; u != nil { // the drain agent reads its own at any time
			status := *u
			work.Upgrade = &status
		}
	}
	state, err := w.config.Directory.Load()
	if err != nil {
		return w.later(work, err.Error())
	}
	id := ID(o)
	switch {
	case state.Trial != nil && state.Trial.Operation == id && w.config.Started.Trial && w.config.Started.Program == state.Trial.Program:
		return w.try(ctx, o, state, work, report)
	case state.Trial != nil && state.Trial.Operation == id: // it was about to begin
		// skerry-launch starts no trial that it can't count: on a full disk this would be repeated
		// for ever.
		if _, err := w.config.Directory.Save(state); err != nil {
			return w.later(work, err.Error())
		}
		return w.restart(ctx, work, report)
	case state.Returned != nil && state.Returned.Operation == id:
		return w.returned(ctx, o, state, work)
	case state.Former != nil && state.Former.Operation == id:
		return done(work, v1alpha1.OperationConfirmed, "the device is healthy with it")
	}
	work.Tried = false
	if o.Spec.Operation == v1alpha1.OperationConfig {
		return w.configure(ctx, o, state, work, report)
	}
	return w.upgrade(ctx, o, state, work, report)
}
