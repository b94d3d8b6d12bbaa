package images

import (
	"context"
	"fmt"
	"time"

	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/pods/images/containerd"
)

// restoreTimeout bounds the import of the sandbox image, and ends it once it is written: with it,
// all is written that other programs have not.
const restoreTimeout = 10 * time.Minute

// TryRestore restores the sandbox image, and logs a failure once.
func (s *Server) TryRestore(ctx context.Context) {
	err := s.Restore(ctx)
	text := ""
	if err != nil {
		text = err.Error()
	}
	s.mu.Lock()
	before := s.failure
	s.failure = text
	s.mu.Unlock()
	if err != nil && text != before {
		klog.FromContext(ctx).Error(err, "Failed to restore the sandbox image, retrying")
	}
}

// Restore imports the sandbox image from the archive if the container runtime does not have it:
// without it no pod can start, and a device without a link can't pull it. The image gets the name
// that the runtime asks for. It is complete before there can be a sandbox of it. It may be called
// again and again.
func (s *Server) Restore(ctx context.Context) error {
	name := s.sandboxImage(ctx)
	if name == "" {
		return nil
	}
	return s.images(func(runtime runtimev1.ImageServiceClient) error {
		there, err := statusOf(ctx, runtime, name)
		if err != nil {
			return err
		}
		if there != nil && s.config.Complete != nil {
			return s.makeComplete(ctx, runtime, imageOf(there))
		}
		if there != nil {
			return nil
		}
		if s.config.Archive == "" {
			return nil
		}
		return s.once(ctx, "restore "+name, func(ctx context.Context) error { return s.restore(ctx, name) })
	})
}

func (s *Server) restore(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()
	return s.images(func(runtime runtimev1.ImageServiceClient) error {
		if there, err := statusOf(ctx, runtime, name); err != nil || there != nil { // another call was quicker
			return err
		}
		var id string
		err := s.containerd(ctx, runtime, func(c *containerd.Client) (err error) {
			id, err = c.Import(ctx, s.config.Archive, name, func() error { return s.write(ctx, runtime) })
			return err
		})
		if err != nil {
			return fmt.Errorf("importing the sandbox image %s from %s: %w", name, s.config.Archive, err)
		}
		klog.FromContext(ctx).Info("Restored the sandbox image", "image", name, "from", s.config.Archive)
		if s.config.Complete == nil {
			return nil
		}
		return s.pulled(ctx, runtime, containerd.Image{ID: id, Names: []string{name}})
	})
}

// statusOf is an image that a runtime has; nil if it does not.
func statusOf(ctx context.Context, runtime runtimev1.ImageServiceClient, name string) (*runtimev1.Image, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	answer, err := runtime.ImageStatus(ctx, &runtimev1.ImageStatusRequest{Image: &runtimev1.ImageSpec{Image: name}})
	if err != nil {
		return nil, fmt.Errorf("asking for the image %s: %w", name, err)
	}
	return answer.GetImage(), nil
}
