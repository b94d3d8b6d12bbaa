package images_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skerry-io/skerry/edge/internal/pods/images"
)

// An image that came without a pull is written to the disk before the kubelet gets its status, and
// so before its first container; one that is known to be there is not. One that is gone may come
// back otherwise.
func TestImageIsOnTheDiskBeforeItsFirstContainer(t *testing.T) {
	var log []string
	complete := pulls{map[string][]byte{"boot": []byte("second"), "a": []byte("{}")}, &log}
	r := &runtime{images: []string{"a/b", "c/d"}, log: &log}
	s, socket := newServerOf(t, r, pulls{map[string][]byte{}, new([]string)}, func(c *images.Config) { c.Complete = complete })
	client, stop := serve(t, s, socket)
	defer stop()
	ask := func(name string) {
		t.Helper()
		if _, err := client.ImageStatus(t.Context(), &runtimev1.ImageStatusRequest{Image: &runtimev1.ImageSpec{Image: name}}); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(step string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, log); diff != "" {
			t.Errorf("%s: %s", step, diff)
		}
		log = nil
	}
	ask("a/b")
	expect("complete")
	ask("c/d")
	expect("imported", "sync /images", "store c")
	ask("c/d")
	expect("asked for again")
	ask("e/f")
	expect("not there")
	if _, err := client.RemoveImage(t.Context(), &runtimev1.RemoveImageRequest{Image: &runtimev1.ImageSpec{Image: "a/b"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.ListImages(t.Context(), &runtimev1.ListImagesRequest{}); err != nil {
		t.Fatal(err)
	}
	expect("removed", "remove a/b", "forget a")
	if _, err := client.PullImage(t.Context(), &runtimev1.PullImageRequest{Image: &runtimev1.ImageSpec{Image: "g/h"}}); err != nil {
		t.Fatal(err)
	}
	ask("g/h")
	expect("pulled", "pull g/h", "sync /images", "store g")
}

// At its first start a device writes all images; later, those that are gone are forgotten, and
// those that have come are written when they are asked for.
func TestSurvey(t *testing.T) {
	tests := map[string]struct {
		stored map[string]string
		want   []string
		after  []string
	}{
		"first start":       {nil, []string{"sync /images"}, []string{"a", "boot", "c"}},
		"this boot":         {map[string]string{"boot": "second", "a": "{}"}, nil, []string{"a", "boot"}},
		"the next boot":     {map[string]string{"boot": "first", "a": "{}", "c": "{}"}, nil, []string{"a", "boot", "c"}},
		"an image is gone":  {map[string]string{"boot": "second", "a": "{}", "x": "{}"}, nil, []string{"a", "boot"}},
		"one was imported":  {map[string]string{"boot": "first", "a": "{}"}, nil, []string{"a", "boot"}},
		"all were imported": {map[string]string{"boot": "first"}, nil, []string{"boot"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var log []string
			complete := pulls{map[string][]byte{}, new([]string)}
			for id, boot := range test.stored {
				complete.kept[id] = []byte(boot)
			}
			s, _ := newServerOf(t, &runtime{images: []string{"a/b", "c/d"}, log: &log}, pulls{map[string][]byte{}, &log}, func(c *images.Config) { c.Complete = complete })
			for range 2 { // the second has nothing to do
				if err := s.Settle(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(test.want, log); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(test.after, slices.Sorted(maps.Keys(complete.kept))); diff != "" {
				t.Error(diff)
			}
			if string(complete.kept["boot"]) != "second" {
				t.Errorf("the boot is %s", complete.kept["boot"])
			}
		})
	}
}
