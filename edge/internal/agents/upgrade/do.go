package upgrade

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
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
	if err := formats(s); err != nil {
		return err
	}
	if s.Window != nil {
		if _, err := windowOf(*s.Window, w.config.Zone); err != nil {
			return fmt.Errorf("window: %w", err)
		}
	}
	return nil
}

// formats checks the fields as kube-apiserver does: their values come from a cloud that may not
// have asked it.
func formats(s v1alpha1.NodeOperationSpec) error {
	const name = `[a-z0-9]+([._-]+[a-z0-9]+)*`
	check := func(field, value, pattern string, most int) error {
		if len(value) > most || !regexp.MustCompile(`\A(`+pattern+`)\z`).MatchString(value) {
			return fmt.Errorf("%s: %.64q has another format", field, value)
		}
		return nil
	}
	var errs []error
	if u := s.Upgrade; u != nil {
		errs = append(errs, check("upgrade.version", u.Version, `v[0-9]{1,6}\.[0-9]{1,6}\.[0-9]{1,6}([-+][0-9A-Za-z.+-]{1,64})?`, 96),
			check("upgrade.digest", u.Digest, `(sha256:[0-9a-f]{64})?`, 71))
	}
	if p := s.ImagePull; p != nil {
		if len(p.Images) == 0 || len(p.Images) > maxImages {
			errs = append(errs, fmt.Errorf("imagePull.images: %d images, must be 1 to %d", len(p.Images), maxImages))
		}
		for _, image := range p.Images[:min(len(p.Images), maxImages)] {
			errs = append(errs, check("imagePull.images", image, name+`(:[0-9]{1,5})?(/`+name+`)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?`, 384))
		}
		if from := p.PullSecret; from != nil {
			errs = append(errs, check("imagePull.pullSecret.namespace", from.Namespace, `[a-z0-9]([-a-z0-9]*[a-z0-9])?`, 63),
				check("imagePull.pullSecret.name", from.Name, `[a-z0-9]([-a-z0-9.]*[a-z0-9])?`, 253))
		}
	}
	if w := s.Window; w != nil {
		errs = append(errs, check("window.timeZone", w.TimeZone, `([A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2})?`, 64))
	}
	return errors.Join(errs...)
}

// maxImages bounds the images of an operation, as the CustomResourceDefinition does.
const maxImages = 32

// Do implements drain.Works.
func (w *Works) Do(ctx context.Context, o drain.Operation, report func(drain.Work)) drain.Work {
	if o.Spec.Operation == v1alpha1.OperationImagePull {
		return w.pull(ctx, o, report)
	}
	return warned(w.change(ctx, o, func(work drain.Work) { report(warned(work)) }))
}

// warned puts the warning of an operation in front of its message.
func warned(work drain.Work) drain.Work {
	if warning := work.Warning + ": "; work.Warning != "" && !strings.HasPrefix(work.Message, warning) {
		work.Message = warning + work.Message
	}
	return work
}

// change upgrades or configures edgecore.
func (w *Works) change(ctx context.Context, o drain.Operation, report func(drain.Work)) drain.Work {
	work := drain.Work{Upgrade: &v1alpha1.UpgradeStatus{From: w.config.Version}}
	if o.Work != nil {
		work = *o.Work
		work.Next, work.Waits = time.Time{}, false
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
