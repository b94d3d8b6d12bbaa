package images_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/pods/images"
)

// hub is where images without a host are.
const hub = "docker" + ".io"

const digest = "sha256:0123456789012345678901234567890123456789012345678901234567890123"

// An image is found by every form in which a pod may name it; while the pods are not known, all are
// kept.
func TestPin(t *testing.T) {
	all := func() []*runtimev1.Image {
		return []*runtimev1.Image{
			{Id: "sha256:a", RepoTags: []string{hub + "/library/nginx:latest"}},
			{Id: "sha256:b", RepoTags: []string{"registry.example:5000/app:v1"}, RepoDigests: []string{"registry.example:5000/app@" + digest}},
			{Id: "sha256:c", RepoTags: []string{"skerry.local/pause:1"}},
			{Id: "sha256:d", RepoTags: []string{hub + "/library/old:1"}},
			{Id: "sha256:e", Pinned: true},
		}
	}
	tests := map[string]struct {
		wanted []string
		known  bool
		want   string
	}{
		"nothing":          {nil, true, "e"},
		"a short name":     {[]string{"nginx", "skerry.local/pause:1", ""}, true, "ace"},
		"a tag":            {[]string{"registry.example:5000/app:v1"}, true, "be"},
		"another tag":      {[]string{"registry.example:5000/app:v2"}, true, "e"},
		"a digest":         {[]string{"registry.example:5000/app@" + digest}, true, "be"},
		"a tag and digest": {[]string{"registry.example:5000/app:v9@" + digest}, true, "be"},
		"an ID":            {[]string{"sha256:d"}, true, "de"},
		"not known":        {nil, false, "abcde"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			have := all()
			images.Pin(have, test.wanted, test.known)
			got := ""
			for _, i := range have {
				if i.Pinned {
					got += i.Id[len(i.Id)-1:]
				}
			}
			if got != test.want {
				t.Errorf("pinned %q, want %q", got, test.want)
			}
		})
	}
}

func TestWanted(t *testing.T) {
	pod := func(image string, policy corev1.RestartPolicy, phase corev1.PodPhase) corev1.Pod {
		return corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: policy, Containers: []corev1.Container{{Image: image}}}, Status: corev1.PodStatus{Phase: phase}}
	}
	full := pod("main", corev1.RestartPolicyAlways, corev1.PodRunning)
	full.Spec.InitContainers = []corev1.Container{{Image: "init"}}
	full.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "volume"}}}, {Name: "other"}}
	off := false
	content := []v1alpha1.AppContent{{Type: v1alpha1.ContentContainerImage, Source: "prefetched"}, {Type: v1alpha1.ContentDiskImage, Source: "http://disk"}}
	got := images.Wanted([]corev1.Pod{
		full,
		pod("evicted", corev1.RestartPolicyAlways, corev1.PodFailed),
		pod("job", corev1.RestartPolicyNever, corev1.PodRunning),
		pod("done", corev1.RestartPolicyNever, corev1.PodSucceeded),
		pod("tried", corev1.RestartPolicyOnFailure, corev1.PodFailed),
	}, []v1alpha1.EdgeApp{
		{Spec: v1alpha1.EdgeAppSpec{Content: content}},
		{Spec: v1alpha1.EdgeAppSpec{Activate: &off, Content: []v1alpha1.AppContent{{Type: v1alpha1.ContentContainerImage, Source: "switched off"}}}},
	})
	slices.Sort(got)
	if diff := cmp.Diff([]string{"evicted", "init", "job", "main", "prefetched", "volume"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
