package images

import (
	"context"
	"slices"

	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ListImages implements runtimev1.ImageServiceServer.
func (s service) ListImages(ctx context.Context, r *runtimev1.ListImagesRequest) (*runtimev1.ListImagesResponse, error) {
	before := s.known() // one whose pull ends meanwhile may not be in the answer
	answer, err := s.runtime.ListImages(ctx, r)
	if err != nil {
		return nil, err
	}
	if r.GetFilter().GetImage() == nil {
		s.forget(ctx, slices.DeleteFunc(before, func(id string) bool {
			return slices.ContainsFunc(answer.Images, func(i *runtimev1.Image) bool { return i.Id == id })
		}))
	}
	s.pin(ctx, answer.Images)
	// The kubelet asks every 30 s: an image removed by another program is restored before a sandbox
	// needs it. The next answer has the restored image.
	if name := s.sandboxImage(ctx); r.GetFilter().GetImage() == nil && name != "" && !listed(answer.Images, name) {
		s.TryRestore(ctx)
	}
	return answer, nil
}

// RemoveImage implements runtimev1.ImageServiceServer.
func (s service) RemoveImage(ctx context.Context, r *runtimev1.RemoveImageRequest) (*runtimev1.RemoveImageResponse, error) {
	return s.runtime.RemoveImage(ctx, r)
}

// ImageFsInfo implements runtimev1.ImageServiceServer.
func (s service) ImageFsInfo(ctx context.Context, r *runtimev1.ImageFsInfoRequest) (*runtimev1.ImageFsInfoResponse, error) {
	return s.runtime.ImageFsInfo(ctx, r)
}
