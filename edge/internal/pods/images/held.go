package images

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// heldBy answers a pull that failed of an image that is on the device: without a link and without
// an answer of the registry, the image is that one, if this pod has run with it before. So the
// registry once gave it to this pod; others get its refusal or no answer. nil: the failure stands.
// The kubelet pulls an image that is on the device for a pod with imagePullPolicy Always (the
// default for the tag latest), and for one whose credentials are not those of an earlier pull
// (KEP-2535): its Secret was replaced, or the kubelet's record of the pull was lost. It then takes
// the new ones for those of the registry, as it does with a Secret that was changed in place.
func (s service) heldBy(ctx context.Context, r *runtimev1.PullImageRequest, failure error) *runtimev1.PullImageResponse {
	uid := r.GetSandboxConfig().GetMetadata().GetUid()
	if uid == "" || s.config.Linked == nil || s.config.Linked() || !unanswered(failure) {
		return nil
	}
	name := r.GetImage().GetImage()
	if !slices.Contains(s.usedBefore(uid), normal(name)) {
		pods, err := s.pods(ctx)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Failed to look whether a pod has run with an image before: it waits for the registry", "image", name, "podUID", uid)
			return nil
		}
		if !slices.Contains(Used(pods)[uid], normal(name)) {
			return nil
		}
	}
	held, err := s.runtime.ImageStatus(ctx, &runtimev1.ImageStatusRequest{Image: r.GetImage()})
	if err != nil || held.GetImage() == nil {
		return nil
	}
	klog.FromContext(ctx).Info("Using the image on the device: there is no link, and the registry does not answer", "image", name, "podUID", uid, "err", failure)
	return &runtimev1.PullImageResponse{ImageRef: held.Image.Id}
}

// Used are the images that each pod has run with, by the pod's UID in the container runtime. A pod
// with imagePullPolicy Never has none: the kubelet does not pull for it.
func Used(pods []corev1.Pod) map[string][]string {
	all := map[string][]string{}
	for i := range pods {
		p := &pods[i]
		uid := string(p.UID)
		if hash := p.Annotations[corev1.MirrorPodAnnotationKey]; hash != "" {
			uid = hash // the runtime identifies a static pod by the hash of its file
		}
		ran := map[string]bool{}
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			if c.ImageID != "" {
				ran[c.Name] = true
			}
		}
		for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
			if ran[c.Name] && c.ImagePullPolicy != corev1.PullNever {
				all[uid] = append(all[uid], normal(c.Image))
			}
		}
		for _, v := range p.Spec.Volumes {
			if v.Image != nil && v.Image.PullPolicy != corev1.PullNever && len(ran) > 0 { // no container is created before its volumes
				all[uid] = append(all[uid], normal(v.Image.Reference))
			}
		}
	}
	return all
}

// unanswered reports whether a registry did not answer a pull. containerd has no code for it: it
// wraps the error of its HTTP client.
func unanswered(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return true
	}
	return slices.ContainsFunc([]string{"failed to do request", "dial tcp", "i/o timeout", "RegistryUnavailable"}, func(s string) bool {
		return strings.Contains(err.Error(), s)
	})
}

// Prepare notes with which images pods have run before the kubelet starts: without dead containers
// in the runtime, as after a boot with a wrong clock, it drops that from their status.
func (s *Server) Prepare(ctx context.Context) error {
	pods, err := s.pods(ctx)
	if err != nil {
		return err
	}
	used := Used(pods)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used = used
	return nil
}

func (s *Server) usedBefore(uid string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used[uid]
}
