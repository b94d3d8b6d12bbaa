package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/pods/cri"
	"github.com/skerry-io/skerry/edge/internal/pods/images/archive"
)

// A pull is stored from before its begin until the image's files are on the disk. containerd syncs
// its database but not the files of unpacked layers: after a power cut an image may be listed whose
// files are empty, and it is never unpacked again (containerd issue 5854; image_pull_with_sync_fs
// of containerd 2 is off by default).
type pull struct {
	// Boot is the boot in which it began (proc(5)).
	Boot string `json:"boot"`
	// Before are the IDs of all images that were complete then.
	Before []string `json:"before,omitempty"`
}

// ImageStatus implements runtimev1.ImageServiceServer.
func (s service) ImageStatus(ctx context.Context, r *runtimev1.ImageStatusRequest) (*runtimev1.ImageStatusResponse, error) {
	_ = s.Settle(ctx) // or an incomplete image would count as pulled; the kubelet's start reports errors
	return s.runtime.ImageStatus(ctx, r)
}

// PullImage implements runtimev1.ImageServiceServer.
func (s service) PullImage(ctx context.Context, r *runtimev1.PullImageRequest) (*runtimev1.PullImageResponse, error) {
	name := r.GetImage().GetImage()
	if err := s.enter(ctx, s.runtime, name); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to store that a pull begins: a power cut may leave its image incomplete", "image", name)
	}
	answer, err := s.runtime.PullImage(ctx, r)
	// Also after a failure: the next pull takes the layers that this one has unpacked.
	if syncErr := s.leave(context.WithoutCancel(ctx), s.runtime, name); syncErr != nil {
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

// write writes all files of images to the disk, which may take as long as the disk does.
func (s *Server) write(ctx context.Context, runtime runtimev1.ImageServiceClient) error {
	askCtx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	info, err := runtime.ImageFsInfo(askCtx, &runtimev1.ImageFsInfoRequest{})
	if err != nil {
		return fmt.Errorf("asking for the file systems of images: %w", err)
	}
	for _, f := range info.ImageFilesystems {
		if err := s.config.Sync(f.GetFsId().GetMountpoint()); err != nil {
			return err
		}
	}
	return nil
}

// Settle removes images whose pull a power cut has interrupted, so that they are pulled again as a
// whole. It is for the time before the kubelet starts, and may be called again and again: once it
// has succeeded, it has nothing to do.
func (s *Server) Settle(ctx context.Context) error {
	s.pulls.Lock()
	defer s.pulls.Unlock()
	return s.settle(ctx)
}

// settle is Settle while pulls is locked. It leaves pulls alone that are under way.
func (s *Server) settle(ctx context.Context) (err error) {
	if s.settled {
		return nil
	}
	defer func() { s.settled = err == nil }()
	all, err := s.config.Memory.Load()
	maps.DeleteFunc(all, func(name string, _ []byte) bool { return s.pulling[name] > 0 })
	if err != nil || len(all) == 0 {
		return err
	}
	conn, err := cri.Dial(s.config.Images)
	if err != nil {
		return err
	}
	defer conn.Close()
	runtime := runtimev1.NewImageServiceClient(conn)
	var errs []error
	lost := false
	for name, raw := range all {
		var p pull
		if err := json.Unmarshal(raw, &p); err != nil {
			errs = append(errs, fmt.Errorf("reading the pull of %s: %w", name, err))
		}
		if p.Boot == s.config.Boot { // only edgecore ended
			err = s.write(ctx, runtime)
		} else {
			lost = true
			err = s.discard(ctx, runtime, name, p.Before)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, s.config.Memory.Save(ctx, map[string][]byte{name: nil}))
	}
	if lost && len(s.pulling) == 0 { // layers of images that are not complete
		if err := archive.DeleteExpiring(ctx, conn); err != nil {
			errs = append(errs, fmt.Errorf("removing the layers of interrupted pulls: %w", err))
		}
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
	if _, err := runtime.RemoveImage(ctx, &runtimev1.RemoveImageRequest{Image: spec}); err != nil {
		return fmt.Errorf("removing the image %s: %w", name, err)
	}
	klog.FromContext(ctx).Info("Removed an image whose pull was interrupted by a power cut, it is pulled again", "image", name)
	return nil
}

// Sync writes all files of a path's file system to the disk (syncfs(2)); those of all file systems
// if the path is not there, as with a snapshotter in a mount namespace of its own.
func Sync(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_DIRECTORY, 0)
	if err != nil {
		unix.Sync()
		return nil
	}
	err = unix.Syncfs(fd)
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return fmt.Errorf("writing %s to the disk: %w", path, err)
	}
	return nil
}
