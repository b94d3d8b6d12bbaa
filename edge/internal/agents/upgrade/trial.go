package upgrade

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
	"github.com/skerry-io/skerry/edge/internal/core/artefact"
	"github.com/skerry-io/skerry/edge/internal/core/launch"
)

func timeoutOf(o drain.Operation) time.Duration {
	if t := o.Spec.HealthTimeout; t != nil && t.Duration > 0 {
		return t.Duration
	}
	return standardTimeout
}

// try is the trial's own process: it confirms itself once it is healthy, and rolls back if it is
// not in time.
func (w *Works) try(ctx context.Context, o drain.Operation, state launch.State, work drain.Work, report func(drain.Work)) drain.Work {
	work.Tried = true
	if work.Upgrade != nil {
		status := *work.Upgrade
		status.Starts = int32(state.Trial.Starts)
		work.Upgrade = &status
	}
	deadline := w.began.Add(timeoutOf(o))
	tick := time.NewTicker(poll)
	defer tick.Stop()
	said := ""
	rebooted := state.Trial.Boot != "" && state.Trial.Boot != w.config.Boot
	for {
		problems, checks := w.health(ctx, work.Offline, rebooted)
		linked := work.Offline || w.config.Device.Linked()
		if ctx.Err() != nil {
			return work
		}
		if linked && len(problems) == 0 {
			work.Checks = checks
			if _, err := w.config.Directory.Save(state.Confirm(w.config.Now().Add(probation))); err != nil {
				problems = []string{err.Error()}
			} else {
				w.clean(ctx, o)
				return done(work, v1alpha1.OperationConfirmed, "the device is healthy with it")
			}
		}
		if !linked {
			problems = append(problems, "there is no link to the cloud")
		}
		text := strings.Join(problems, "; ")
		if text != said {
			said, work.Checks, work.Message = text, checks, "not healthy yet: "+text
			report(work)
		}
		if w.config.Now().After(deadline) {
			return w.back(ctx, state, work, len(problems) == 1 && !linked, text, report)
		}
		select {
		case <-ctx.Done():
			return work
		case <-tick.C:
		}
	}
}

// clean removes the file that a confirmed version was made of. One that was fetched for another
// operation stays.
func (w *Works) clean(ctx context.Context, o drain.Operation) {
	if o.Spec.Operation != v1alpha1.OperationUpgrade {
		return
	}
	if err := w.config.Artefacts.Clean(artefact.Target{}); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to remove the file of an upgrade; the next upgrade removes it")
	}
}

func (w *Works) back(ctx context.Context, state launch.State, work drain.Work, link bool, text string, report func(drain.Work)) drain.Work {
	cause := launch.Unhealthy
	if link {
		cause = launch.NoLink
	}
	if _, err := w.config.Directory.Save(state.Back(cause, text)); err != nil {
		// The disk fails: the starts of the trial are bounded nevertheless.
		work.Message = err.Error()
	}
	return w.restart(ctx, work, report)
}

// health are the problems of this process, and the results of the site's own checks. These run once
// all else is healthy.
func (w *Works) health(ctx context.Context, offline, rebooted bool) (problems []string, checks []v1alpha1.HealthCheck) {
	if problems = w.config.Device.Problems(ctx, rebooted); len(problems) > 0 || !offline && !w.config.Device.Linked() {
		return problems, nil
	}
	checks, err := w.config.Checks(ctx)
	if err != nil {
		return []string{err.Error()}, nil
	}
	for _, c := range checks {
		if c.Required && c.ExitCode != 0 {
			problems = append(problems, fmt.Sprintf("check %s ended with %d", c.Name, c.ExitCode))
		}
	}
	return problems, checks
}

// returned handles the confirmed process after a rolled-back trial: it is the control. If it has no
// link either, the network was at fault. If it has one, that may have ended with the trial: the
// second trial in a row decides.
func (w *Works) returned(ctx context.Context, o drain.Operation, state launch.State, work drain.Work) drain.Work {
	r := *state.Returned
	if r.Cause == launch.NoLink {
		switch linked := w.awaitLink(ctx, timeoutOf(o)); {
		case ctx.Err() != nil:
			return work
		case !linked:
			return w.repeat(state, work, 0, "the network was down during the trial: retrying once there is a link")
		case work.NoLinks == 0:
			return w.repeat(state, work, 1, "the trial had no link, the version before it has one: trying once more")
		}
		state = state.Judge()
	}
	if work.Upgrade != nil {
		status := *work.Upgrade
		status.Starts = int32(r.Starts)
		work.Upgrade = &status
	}
	work.Output = tail(w.config.Log(), 4<<10)
	if _, err := w.config.Directory.Save(state.Noted()); err != nil {
		return w.later(work, err.Error())
	}
	reason := v1alpha1.OperationRolledBack
	if r.Cause == launch.Superseded {
		reason = string(launch.Superseded)
	}
	return failed(work, reason, fmt.Sprintf("%s: %s", r.Cause, r.Message))
}

// repeat has a trial without a link repeated, without a verdict. noLinks is how many trials in a
// row had no link, with one in the time thereafter: after the first of them an outage may have
// ended just then.
func (w *Works) repeat(state launch.State, work drain.Work, noLinks int, message string) drain.Work {
	if _, err := w.config.Directory.Save(state.Noted()); err != nil {
		return w.later(work, err.Error())
	}
	work.Tried, work.NoLinks = false, noLinks
	return w.later(work, message)
}

// awaitLink waits for a link, a rescue session included, at most for that time.
func (w *Works) awaitLink(ctx context.Context, most time.Duration) bool {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for until := w.config.Now().Add(most); w.config.Now().Before(until); {
		if w.config.Device.Reaches() {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return false
}

// Overturned implements drain.Works: the confirmed program crashed too often in its probation.
func (w *Works) Overturned() (is func(drain.Operation) bool, message, output string) {
	state, err := w.config.Directory.Load()
	if err != nil || state.Returned == nil || state.Returned.Cause != launch.Crashed {
		return nil, "", ""
	}
	return func(o drain.Operation) bool { return ID(o) == state.Returned.Operation }, state.Returned.Message, tail(w.config.Log(), 4<<10)
}

// NoteOverturned implements drain.Works.
func (w *Works) NoteOverturned() error {
	state, err := w.config.Directory.Load()
	if err != nil {
		return err
	}
	_, err = w.config.Directory.Save(state.Noted())
	return err
}
