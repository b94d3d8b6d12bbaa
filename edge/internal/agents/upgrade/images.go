package upgrade

import (
	"context"
	"errors"
	"fmt"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
)

// pull pulls one image after the other. Images on the device are not pulled again, so an
// interrupted operation resumes.
func (w *Works) pull(ctx context.Context, o drain.Operation, report func(drain.Work)) drain.Work {
	spec := *o.Spec.ImagePull
	work := drain.Work{}
	if wait, next := w.closed(o); wait {
		work.Message, work.Next = "waits for its window", next
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
	missing := 0
	for _, image := range spec.Images {
		p := w.pullOne(ctx, image, as)
		if ctx.Err() != nil {
			return work
		}
		if !p.Pulled {
			missing++
		}
		work.Images = append(work.Images, p)
		work.Message = fmt.Sprintf("%d of %d images are on the device", len(work.Images)-missing, len(spec.Images))
		report(work)
	}
	if missing > 0 {
		return w.later(work, work.Message)
	}
	return done(work, v1alpha1.OperationPulled, work.Message)
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
