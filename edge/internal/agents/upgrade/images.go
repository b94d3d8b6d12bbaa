package upgrade

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
)

// pull pulls one image after the other. Images on the device are not pulled again, so an
// interrupted operation resumes. One that fails is repeated ever less often: a registry may be away
// for hours, or have no such image.
func (w *Works) pull(ctx context.Context, o drain.Operation, report func(drain.Work)) drain.Work {
	spec := *o.Spec.ImagePull
	work := drain.Work{}
	if o.Work != nil {
		work.Images, work.Pauses = slices.Clone(o.Work.Images), o.Work.Pauses
	}
	if wait, next := w.closed(o); wait {
		work.Message, work.Next, work.Waits = "waits for its window", next, true
		return work
	}
	var as Credentials
	if spec.PullSecret != nil {
		var err error
		switch as, err = w.config.Images.Credentials(ctx, *spec.PullSecret); {
		case errors.Is(err, ErrForeignSecret):
			return failed(work, v1alpha1.OperationRefused, fmt.Sprintf("pullSecret %s/%s: %v", spec.PullSecret.Namespace, spec.PullSecret.Name, err))
		case err != nil:
			return w.later(work, "reading the pull secret: "+err.Error())
		}
	}
	there := 0
	for i, image := range spec.Images {
		p := w.pullOne(ctx, image, as)
		if ctx.Err() != nil {
			return work
		}
		if p.Pulled {
			there++
		}
		if i < len(work.Images) && work.Images[i] == p {
			continue // reported by an earlier try
		}
		work.Images = append(slices.Clone(work.Images[:min(i, len(work.Images))]), append([]v1alpha1.PulledImage{p}, work.Images[min(i+1, len(work.Images)):]...)...)
		work.Message = onDevice(work.Images, len(spec.Images))
		report(work)
	}
	work.Message = onDevice(work.Images, len(spec.Images))
	if there < len(spec.Images) {
		work = w.later(work, work.Message)
		work.Next = work.Next.Add(min(maxPause, pause<<min(work.Pauses, 8)) - pause)
		work.Pauses++
		return work
	}
	return done(work, v1alpha1.OperationPulled, work.Message)
}

func onDevice(images []v1alpha1.PulledImage, all int) string {
	n := 0
	for _, i := range images {
		if i.Pulled {
			n++
		}
	}
	return fmt.Sprintf("%d of %d images are on the device", n, all)
}

const maxImageMessage = 128

func (w *Works) pullOne(ctx context.Context, image string, as Credentials) v1alpha1.PulledImage {
	p := v1alpha1.PulledImage{Image: image}
	there, err := w.config.Images.Present(ctx, image)
	if err == nil && !there {
		err = w.config.Images.Pull(ctx, image, as)
	}
	if err != nil {
		p.Message = head(err.Error(), maxImageMessage)
		return p
	}
	p.Pulled = true
	if err := w.config.Images.Keep(ctx, image); err != nil {
		p.Message = head(err.Error(), maxImageMessage)
		return p
	}
	p.Kept = true
	return p
}
