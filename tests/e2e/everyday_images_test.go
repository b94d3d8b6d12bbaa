package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skerry-io/skerry/build/image"
	"github.com/skerry-io/skerry/tests/cluster/poll"
	"github.com/skerry-io/skerry/tests/cluster/suite"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

const sandboxImage = "skerry.local/pause:1"

// images are the names of the images that containerd has on a node.
func (s *system) images(node string) []string {
	return strings.Fields(s.onHost(node, "ctr", "--namespace=k8s.io", "images", "list", "-q"))
}

// bringImage imports an image that is like no other, with the program of the sample.
func (s *system) bringImage(node, name string) {
	s.T.Helper()
	file := filepath.Join(s.T.TempDir(), "image.tar")
	s.Check(image.WriteFile(file, name, filepath.Join(s.Dir, "images", "pause"), filepath.Base(strings.ReplaceAll(name, ":", "-"))))
	s.onHost(node, "ctr", "--namespace=k8s.io", "images", "import", file)
}

// missing is which of some images a node does not have.
func (s *system) missing(node string, names ...string) error {
	have := s.images(node)
	for _, name := range names {
		if !slices.Contains(have, name) {
			return fmt.Errorf("%s is gone; there are %q", name, have)
		}
	}
	return nil
}

// pinned are the names of the images that the kubelet of a node may not collect, as it is told.
func (s *system) pinned(ctx context.Context, node string) (names []string, err error) {
	conn, err := grpc.NewClient("unix://"+s.path(node, "/run/skerry/edge-images.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	list, err := runtimev1.NewImageServiceClient(conn).ListImages(ctx, &runtimev1.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	for _, i := range list.Images {
		if i.Pinned {
			names = append(names, i.RepoTags...)
		}
	}
	slices.Sort(names)
	return names, nil
}

// collectImages has the kubelet of a device without a link collect all images that it may, which is
// the first of its remedies for a full disk, and waits until one that is unused is gone. The device
// then has room again; pods that were evicted in that time run again.
func (s *system) collectImages(node string) {
	s.T.Helper()
	const unused = "skerry.local/unused:1"
	s.bringImage(node, unused) // before the kubelet starts again: one that it finds is old enough
	set := func(ctx context.Context, free, period, age string) error {
		return s.Trial.Set(ctx, node, []string{
			fmt.Sprintf(`modules.edged.kubelet.evictionHard={"memory.available":"100Mi","nodefs.available":%q,"imagefs.available":%[1]q}`, free),
			"modules.edged.kubelet.evictionPressureTransitionPeriod=" + period,
			"modules.edged.kubelet.imageMinimumGCAge=" + age,
		})
	}
	usual := func(ctx context.Context) error { return set(ctx, "1%", "5m", "2m") }
	restored := false
	s.T.Cleanup(func() {
		if !restored {
			s.Check(usual(context.Background()))
		}
	})
	s.Check(set(s.T.Context(), "99%", "1s", "1ms")) // more than is ever free
	s.WaitFor("an unused image to be collected", func(context.Context) error {
		if slices.Contains(s.images(node), unused) {
			return errors.New("it is there")
		}
		return nil
	})
	s.Check(usual(s.T.Context()))
	restored = true
}

// TestEveryday_11: of all images, the kubelet may collect the unused one; those of the sandbox, of
// pods and of an application's content it may not. A sandbox image that was removed behind its back
// is put back, and where that happened before a reboot without a link, the pods run after it. Where
// a minute is one (SKERRY_MINUTE=1m) the kubelet really collects, which it does every 5 minutes:
// down to 1 % of a disk that is far fuller, so that it takes all that it may.
func TestEveryday_11_SandboxImageSurvivesCollection(t *testing.T) {
	const node = "edge2"
	s := newSystem(t)
	ns := s.Namespace()
	pod := s.pod(ns, "keeper", node)
	const decoy, prefetched, sample = "skerry.local/decoy:1", "skerry.local/prefetched:1", "skerry.local/sample:1"
	for _, name := range []string{decoy, prefetched} {
		s.bringImage(node, name)
	}
	t.Cleanup(func() {
		_, err := s.Trial.Exec(context.Background(), node, trial.Streams{}, nil, "ctr", "--namespace=k8s.io", "images", "rm", decoy, prefetched)
		s.Check(err)
	})
	s.Apply(ns, `apiVersion: skerry.io/v1alpha1
kind: EdgeApp
metadata: {name: prefetches}
spec:
  designatedNode: `+node+`
  content:
  - {name: image, type: ContainerImage, source: "`+prefetched+`"}
  template:
    spec:
      containers:
      - {name: sample, image: skerry.local/sample:1, imagePullPolicy: IfNotPresent}
`)
	s.Check(s.Trial.Set(t.Context(), node, []string{
		"modules.apps.enable=true",
		"modules.edged.kubelet.imageGCHighThresholdPercent=2", "modules.edged.kubelet.imageGCLowThresholdPercent=1", "modules.edged.kubelet.imageMinimumGCAge=1s",
	}))
	t.Cleanup(func() {
		s.Check(s.Trial.Set(context.Background(), node, []string{
			"modules.apps.enable=false",
			"modules.edged.kubelet.imageGCHighThresholdPercent=100", "modules.edged.kubelet.imageGCLowThresholdPercent=80", "modules.edged.kubelet.imageMinimumGCAge=2m",
		}))
	})
	s.waitLinked(node)
	s.WaitFor("the kubelet to be told what it may collect", func(ctx context.Context) error {
		got, err := s.pinned(ctx, node)
		if want := []string{sandboxImage, prefetched, sample}; err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("it is told to keep %q, want %q", got, want)
		}
		return err
	})
	s.Cut(node)
	if minutes(t, 1) == time.Minute {
		ctx, cancel := context.WithTimeout(t.Context(), minutes(t, 12))
		defer cancel()
		s.Check(poll.Until(ctx, 3*time.Second, func(context.Context) error {
			if slices.Contains(s.images(node), decoy) {
				return errors.New("an image that nobody wants is there")
			}
			return nil
		}))
		s.Check(s.missing(node, sandboxImage, sample, prefetched))
	}

	s.onHost(node, "ctr", "--namespace=k8s.io", "images", "rm", "--sync", sandboxImage)
	s.WaitFor("the sandbox image to be put back", func(context.Context) error { return s.missing(node, sandboxImage) })

	s.onHost(node, "ctr", "--namespace=k8s.io", "images", "rm", "--sync", sandboxImage)
	s.Reboot(node, true)
	s.waitDevice(node, ns, "keeper", func(p *corev1.Pod) error {
		if p.UID != pod.UID || !suite.PodReady(*p) || restarts(*p) == 0 {
			return fmt.Errorf("uid %s, phase %s, restarts %d: %+v", p.UID, p.Status.Phase, restarts(*p), p.Status.ContainerStatuses)
		}
		return nil
	})
	s.Check(s.missing(node, sandboxImage, sample, prefetched))
}
