package upgrade

import (
	"context"

	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
	"github.com/skerry-io/skerry/edge/internal/core/launch"
)

// configure brings a change of the configuration to its trial: the confirmed program with another
// overlay.
func (w *Works) configure(ctx context.Context, o drain.Operation, state launch.State, work drain.Work, report func(drain.Work)) drain.Work {
	work.Upgrade = nil
	patch, err := yaml.YAMLToJSONStrict([]byte(o.Spec.Config.Patch))
	if err != nil {
		return failed(work, v1alpha1.OperationRefused, "config.patch: "+err.Error())
	}
	if err := w.config.Device.Judge(patch); err != nil {
		return failed(work, v1alpha1.OperationRefused, err.Error())
	}
	if wait, next := w.closed(o); wait {
		work.Message, work.Next, work.Waits = "waits for its window", next, true
		return work
	}
	if !w.config.Device.Linked() { // a session for the rescue of the device is not enough to judge a configuration
		return w.later(work, "waits for the link")
	}
	if err := w.config.Directory.CleanOverlays(state); err != nil {
		return w.later(work, err.Error())
	}
	p := state.Confirmed
	if p.Overlay = ""; string(patch) != "{}" {
		if p.Overlay, err = w.config.Directory.WriteOverlay(patch); err != nil {
			return w.later(work, err.Error())
		}
	}
	switch {
	case p == state.Confirmed:
		return done(work, v1alpha1.OperationUnchanged, "the device has this configuration already")
	case state.Rejects(p) && o.Spec.Retry == 0:
		return failed(work, v1alpha1.OperationRejected, "an earlier trial of this configuration went back; raise retry to try it again")
	}
	return w.arm(ctx, o, state.Forgive(p), p, work, report)
}
