package images_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skerry-io/skerry/edge/internal/pods/images"
)

// alwaysPod pulls the image at each start; it has run with it, or has not.
func alwaysPod(ran bool) corev1.Pod { return podOf(corev1.PullAlways, ran) }

func podOf(policy corev1.PullPolicy, ran bool) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "p"}}
	p.Spec.Containers = []corev1.Container{{Name: "c", Image: "images.example/till", ImagePullPolicy: policy}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c"}}
	if ran {
		p.Status.ContainerStatuses[0].ImageID = "images.example/till@sha256:1"
	}
	return p
}

// A pod that pulls at each start, or whose credentials are not known, gets, without a link and
// while the registry does not answer, the image with which it has run before, and no other pod
// does.
func TestPullWithoutALink(t *testing.T) {
	const image = "images.example/till:latest"
	unreachable := errors.New(`failed to resolve reference "images.example/till:latest": failed to do request: Head "https://images.example/v2/till/manifests/latest": dial tcp: lookup images.example: no such host`)
	refused := errors.New("failed to resolve reference: pull access denied, repository does not exist or may require authorization")
	tests := map[string]struct {
		linked  bool
		failure error
		uid     string
		before  bool // it had run when the kubelet started
		now     bool
		images  []string
		want    string // reference; "": the failure
		policy  corev1.PullPolicy
	}{
		"ran before":                   {false, unreachable, "p", true, true, []string{image}, "images.example", corev1.PullAlways},
		"no answer":                    {false, status.Error(codes.DeadlineExceeded, "x"), "p", true, true, []string{image}, "images.example", corev1.PullAlways},
		"its status has been replaced": {false, unreachable, "p", true, false, []string{image}, "images.example", corev1.PullAlways},
		"ran since":                    {false, unreachable, "p", false, true, []string{image}, "images.example", corev1.PullAlways},
		"never ran":                    {false, unreachable, "p", false, false, []string{image}, "", corev1.PullAlways},
		"another pod":                  {false, unreachable, "other", true, true, []string{image}, "", corev1.PullAlways},
		"no pod":                       {false, unreachable, "", true, true, []string{image}, "", corev1.PullAlways},
		"refused":                      {false, refused, "p", true, true, []string{image}, "", corev1.PullAlways},
		"linked":                       {true, unreachable, "p", true, true, []string{image}, "", corev1.PullAlways},
		"other credentials":            {false, unreachable, "p", true, true, []string{image}, "images.example", corev1.PullIfNotPresent},
		"others, and never ran":        {false, unreachable, "p", false, false, []string{image}, "", corev1.PullIfNotPresent},
		"others, and linked":           {true, unreachable, "p", true, true, []string{image}, "", corev1.PullIfNotPresent},
		"not on the device":            {false, unreachable, "p", true, true, nil, "", corev1.PullAlways},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ran := test.before
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{podOf(test.policy, ran)}}
				w.Header().Set("Content-Type", "application/json")
				if err := json.NewEncoder(w).Encode(list); err != nil {
					t.Error(err)
				}
			}))
			defer api.Close()
			var log []string
			s, socket := newServerOf(t, &runtime{images: test.images, fail: test.failure, log: &log}, pulls{map[string][]byte{}, &log}, func(c *images.Config) {
				c.API, c.Linked = &rest.Config{Host: api.URL}, func() bool { return test.linked }
			})
			if err := s.Prepare(t.Context()); err != nil {
				t.Fatal(err)
			}
			ran = test.now
			client, stop := serve(t, s, socket)
			answer, err := client.PullImage(t.Context(), &runtimev1.PullImageRequest{
				Image:         &runtimev1.ImageSpec{Image: image},
				SandboxConfig: &runtimev1.PodSandboxConfig{Metadata: &runtimev1.PodSandboxMetadata{Uid: test.uid}},
			})
			if got := answer.GetImageRef(); got != test.want || (err != nil) != (test.want == "") {
				t.Errorf("the pull: %q, %v; want %q", got, err, test.want)
			}
			if err != nil && !strings.Contains(err.Error(), status.Convert(test.failure).Message()) {
				t.Errorf("the failure is %v, want the runtime's", err)
			}
			stop()
		})
	}
}

func TestUsed(t *testing.T) {
	static := alwaysPod(true)
	static.UID, static.Annotations = "mirror", map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
	init := alwaysPod(true)
	init.UID = "i"
	const always = corev1.PullAlways
	init.Spec.InitContainers = []corev1.Container{
		{Name: "first", Image: "images.example/a", ImagePullPolicy: always}, {Name: "second", Image: "images.example/b", ImagePullPolicy: always},
		{Name: "third", Image: "images.example/c", ImagePullPolicy: corev1.PullIfNotPresent}, {Name: "fourth", Image: "images.example/d", ImagePullPolicy: corev1.PullNever},
	}
	init.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "first", ImageID: "x"}, {Name: "second"}, {Name: "third", ImageID: "x"}, {Name: "fourth", ImageID: "x"}}
	init.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "images.example/v", PullPolicy: always}}}}
	want := map[string][]string{"hash": {"images.example/till:latest"}, "i": {"images.example/a:latest", "images.example/c:latest", "images.example/till:latest", "images.example/v:latest"}}
	if diff := cmp.Diff(want, images.Used([]corev1.Pod{static, init, alwaysPod(false)})); diff != "" {
		t.Error(diff)
	}
}
