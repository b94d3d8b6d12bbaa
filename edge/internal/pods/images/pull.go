package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/pods/images/containerd"
)

// A pull is stored from before its begin until the image's files are on the disk. containerd syncs
// its database but not the files of unpacked layers: after a power cut an image may be listed whose
// files are empty, and it is never unpacked again (containerd issue 5854; image_pull_with_sync_fs
// of containerd 2 is off by default).
type pull struct {
	// Boot is the boot in which it began (proc(5)).
	Boot string `json:"boot"`
	// Before are the IDs of all images that were there then.
	Before []string `json:"before,omitempty"`
}

// settleTimeout bounds the requests for all images at a start.
const settleTimeout = 10 * time.Minute

// ImageStatus implements runtimev1.ImageServiceServer.
func (s service) ImageStatus(ctx context.Context, r *runtimev1.ImageStatusRequest) (*runtimev1.ImageStatusResponse, error) {
	_ = s.Settle(ctx) // or an incomplete image would count as pulled; the kubelet's start logs errors
	answer, err := s.runtime.ImageStatus(ctx, r)
	if err != nil {
		return nil, err
	}
	s.completed(ctx, s.runtime, answer.Image)
	// containerd pulls that of sandboxes itself where it is in no archive, for the sandbox in which
	// the container is about to be created.
	if name := s.sandboxImage(ctx); name != "" {
		if sandbox, err := s.runtime.ImageStatus(ctx, &runtimev1.ImageStatusRequest{Image: &runtimev1.ImageSpec{Image: name}}); err == nil {
			s.completed(ctx, s.runtime, sandbox.Image)
		}
	}
	return answer, nil
}

// PullImage implements runtimev1.ImageServiceServer.
func (s service) PullImage(ctx context.Context, r *runtimev1.PullImageRequest) (*runtimev1.PullImageResponse, error) {
	name := r.GetImage().GetImage()
	if err := s.enter(ctx, s.runtime, name); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to store that a pull begins: a power cut may leave its image incomplete", "image", name)
	}
	answer, err := s.runtime.PullImage(ctx, r)
	// Also after a failure: the next pull takes the layers that this one has unpacked.
	syncErr := s.leave(context.WithoutCancel(ctx), s.runtime, name)
	if syncErr == nil && err == nil && s.config.Complete != nil {
		syncErr = s.pulled(context.WithoutCancel(ctx), s.runtime, containerd.Image{ID: answer.ImageRef, Names: []string{name}})
	}
	if syncErr != nil {
		klog.FromContext(ctx).Error(syncErr, "Failed to write a pulled image to the disk: a power cut may leave it incomplete", "image", name)
	}
	if err != nil {
		if held := s.heldBy(ctx, r, err); held != nil {
			return held, nil
		}
	}
	return answer, err
}

// enter notes a pull, and stores it if no other of its image is under way. Pulls of an earlier
// process are settled first: the image of one would count as complete.
func (s *Server) enter(ctx context.Context, runtime runtimev1.ImageServiceClient, name string) error {
	s.pulls.Lock()
	defer s.pulls.Unlock()
	err := s.settle(ctx)
	if s.pulling[name]++; s.pulling[name] > 1 {
		return err
	}
	return errors.Join(err, s.begin(ctx, runtime, name))
}

// leave ends a pull. What is stored is deleted with the last pull of the image.
func (s *Server) leave(ctx context.Context, runtime runtimev1.ImageServiceClient, name string) error {
	err := s.write(ctx, runtime)
	s.pulls.Lock()
	defer s.pulls.Unlock()
	if s.pulling[name]--; s.pulling[name] > 0 {
		return err
	}
	delete(s.pulling, name)
	if err != nil {
		return err
	}
	return s.config.Memory.Save(ctx, map[string][]byte{name: nil})
}

func (s *Server) begin(ctx context.Context, runtime runtimev1.ImageServiceClient, name string) error {
	list, err := runtime.ListImages(ctx, &runtimev1.ListImagesRequest{})
	if err != nil {
		return fmt.Errorf("listing the images: %w", err)
	}
	before := pull{Boot: s.config.Boot}
	for _, i := range list.Images {
		before.Before = append(before.Before, i.Id)
	}
	raw, err := json.Marshal(before)
	if err != nil {
		return err
	}
	return s.config.Memory.Save(ctx, map[string][]byte{name: raw})
}

// Settle removes images whose pull a power cut has interrupted, so that they are pulled again as a
// whole, and has those unpacked again that came otherwise. It is for the time before the kubelet
// starts, and may be called again and again: once it has succeeded, it has nothing to do.
func (s *Server) Settle(ctx context.Context) error {
	s.pulls.Lock()
	defer s.pulls.Unlock()
	return s.settle(ctx)
}

// settle is Settle while pulls is locked. It leaves pulls alone that are under way.
func (s *Server) settle(ctx context.Context) error {
	if s.settled {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	err := s.images(func(runtime runtimev1.ImageServiceClient) error {
		if s.config.Complete == nil {
			return s.settlePulls(ctx, runtime)
		}
		stored, err := s.config.Complete.Load()
		if err != nil {
			return err
		}
		if _, before := stored[surveyed]; !before { // it takes what is there
			return errors.Join(s.settlePulls(ctx, runtime), s.survey(ctx, runtime, stored))
		}
		return errors.Join(s.survey(ctx, runtime, stored), s.settlePulls(ctx, runtime))
	})
	s.settled = err == nil
	return err
}

func (s *Server) settlePulls(ctx context.Context, runtime runtimev1.ImageServiceClient) error {
	all, err := s.config.Memory.Load()
	maps.DeleteFunc(all, func(name string, _ []byte) bool { return s.pulling[name] > 0 })
	if err != nil || len(all) == 0 {
		return err
	}
	var errs []error
	for name, raw := range all {
		var p pull
		if err := json.Unmarshal(raw, &p); err != nil {
			errs = append(errs, fmt.Errorf("reading the pull of %s: %w", name, err))
		}
		if p.Boot == s.config.Boot { // only edgecore ended
			err = s.write(ctx, runtime)
		} else {
			err = s.discard(ctx, runtime, name, p.Before)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, s.config.Memory.Save(ctx, map[string][]byte{name: nil}))
	}
	return errors.Join(errs...)
}

// discard removes an image, unless it was complete before its pull.
func (s *Server) discard(ctx context.Context, runtime runtimev1.ImageServiceClient, name string, before []string) error {
	spec := &runtimev1.ImageSpec{Image: name}
	status, err := runtime.ImageStatus(ctx, &runtimev1.ImageStatusRequest{Image: spec})
	if err != nil {
		return fmt.Errorf("asking for the image %s: %w", name, err)
	}
	if status.Image == nil || slices.Contains(before, status.Image.Id) {
		return nil
	}
	if c, ok := s.completeOf(status.Image.Id); ok && !c.Doubtful { // only its record could not be deleted
		return nil
	}
	if _, err := runtime.RemoveImage(ctx, &runtimev1.RemoveImageRequest{Image: spec}); err != nil {
		return fmt.Errorf("removing the image %s: %w", name, err)
	}
	klog.FromContext(ctx).Info("Removed an image whose pull was interrupted by a power cut, it is pulled again", "image", name)
	return nil
}
