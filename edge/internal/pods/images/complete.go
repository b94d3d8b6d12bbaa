package images

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/pods/images/containerd"
)

// An image is complete once its unpacked files are on the disk. That of a pull is (PullImage). Of
// an image that came otherwise, as with `ctr images import`, containerd writes them whenever the
// kernel does, or unpacks them only for the first container: edgecore completes it when the kubelet
// asks for it, which is before that container. One that was not complete at a boot is unpacked
// again, as the boot before may have ended with a power cut.

const (
	// surveyed is the key of the boot of the last survey; all others are IDs of images.
	surveyed = "boot"
	// completeTimeout bounds the unpacking and writing of one image: longer than a slow disk takes.
	completeTimeout = time.Hour
)

// survey takes the images that are complete from the memory. At the first start of this device all
// are, when they are written. The first survey of a boot removes the unpacked layers of the others,
// except for those that are used.
func (s *Server) survey(ctx context.Context, runtime runtimev1.ImageServiceClient) error {
	stored, err := s.config.Complete.Load()
	if err != nil {
		return err
	}
	list, err := runtime.ListImages(ctx, &runtimev1.ListImagesRequest{})
	if err != nil {
		return fmt.Errorf("listing the images: %w", err)
	}
	first, booted := len(stored) == 0, string(stored[surveyed]) != s.config.Boot
	changes := map[string][]byte{surveyed: []byte(s.config.Boot)}
	complete := map[string]bool{}
	var others []string
	for _, i := range list.Images {
		switch _, known := stored[i.Id]; {
		case first:
			changes[i.Id] = []byte(s.config.Boot)
			complete[i.Id] = true
		case known:
			complete[i.Id] = true
		default:
			others = append(others, i.Id)
		}
	}
	for id := range stored {
		if id != surveyed && !complete[id] {
			changes[id] = nil
		}
	}
	if first {
		if err := s.write(ctx, runtime); err != nil {
			return err
		}
	} else if booted && len(others) > 0 {
		if err := s.unpackAgain(ctx, runtime, others, complete); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to remove the unpacked layers of images that may be incomplete: containers of these may fail", "images", others)
		}
	}
	if !first && !booted && len(changes) == 1 { // only edgecore has started
		changes = nil
	}
	if len(changes) > 0 {
		if err := s.config.Complete.Save(ctx, changes); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.complete = complete
	return nil
}

// unpackAgain has images unpacked again when they are asked for.
func (s *Server) unpackAgain(ctx context.Context, runtime runtimev1.ImageServiceClient, ids []string, keep map[string]bool) error {
	return s.containerd(ctx, runtime, func(client *containerd.Client) error {
		var errs []error
		for _, id := range ids {
			errs = append(errs, client.Remove(ctx, id, slices.Sorted(maps.Keys(keep))))
		}
		return errors.Join(errs...)
	})
}

// completed logs a failure to complete an image: its container starts nevertheless.
func (s *Server) completed(ctx context.Context, runtime runtimev1.ImageServiceClient, image *runtimev1.Image) {
	if image == nil {
		return
	}
	if err := s.makeComplete(ctx, runtime, image.Id); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Failed to write an image to the disk: a power cut may leave it incomplete", "image", image.Id)
	}
}

// makeComplete unpacks and writes an image that is not complete. Only one at a time: a write is
// that of the whole file system. It goes on when ctx ends, for the caller's next attempt.
func (s *Server) makeComplete(ctx context.Context, runtime runtimev1.ImageServiceClient, id string) error {
	if s.isComplete(id) {
		return nil
	}
	select {
	case s.completing <- struct{}{}:
		defer func() { <-s.completing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if s.isComplete(id) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), completeTimeout)
	defer cancel()
	if err := s.containerd(ctx, runtime, func(c *containerd.Client) error { return c.Unpack(ctx, id) }); err != nil {
		return err
	}
	if err := s.write(ctx, runtime); err != nil {
		return err
	}
	return s.setComplete(ctx, id)
}

func (s *Server) isComplete(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.complete[id]
}

// setComplete notes that an image's files are on the disk. An unknown ID is none.
func (s *Server) setComplete(ctx context.Context, id string) error {
	if id == "" || s.isComplete(id) {
		return nil
	}
	if err := s.config.Complete.Save(ctx, map[string][]byte{id: []byte(s.config.Boot)}); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.complete[id] = true
	return nil
}

// forget forgets images that are gone: they may come back as others.
func (s *Server) forget(ctx context.Context, gone func(id string) bool) {
	s.mu.Lock()
	changes := map[string][]byte{}
	for id := range s.complete {
		if gone(id) {
			changes[id] = nil
			delete(s.complete, id)
		}
	}
	s.mu.Unlock()
	if len(changes) == 0 {
		return
	}
	if err := s.config.Complete.Save(ctx, changes); err != nil { // the next survey does
		klog.FromContext(ctx).Error(err, "Failed to store that images are gone, retrying at the next start")
	}
}
