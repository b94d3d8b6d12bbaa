package images_test

import (
	stdcmp "cmp"
	"context"
	"errors"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"k8s.io/client-go/rest"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skerry-io/skerry/edge/internal/pods/cri"
	"github.com/skerry-io/skerry/edge/internal/pods/images"
)

// pulls is a memory that notes its changes.
type pulls struct {
	kept map[string][]byte
	log  *[]string
}

func (p pulls) Load() (map[string][]byte, error) { return maps.Clone(p.kept), nil }

func (p pulls) Save(_ context.Context, changes map[string][]byte) error {
	for name, raw := range changes {
		if raw == nil {
			delete(p.kept, name)
			*p.log = append(*p.log, "forget "+name)
			continue
		}
		p.kept[name] = raw
		*p.log = append(*p.log, "store "+name)
	}
	return nil
}

// runtime is a container runtime whose images have their names as IDs, in front of "/", unless
// others are given.
type runtime struct {
	runtimev1.UnimplementedImageServiceServer
	images     []string
	ids        map[string]string
	fail       error // of a pull
	listing    error
	mountpoint string // "" is /images
	log        *[]string
}

func (r *runtime) id(name string) string {
	if id := r.ids[name]; id != "" {
		return id
	}
	id, _, _ := strings.Cut(name, "/")
	return id
}

func (r *runtime) ListImages(context.Context, *runtimev1.ListImagesRequest) (*runtimev1.ListImagesResponse, error) {
	answer := &runtimev1.ListImagesResponse{}
	for _, i := range r.images {
		answer.Images = append(answer.Images, &runtimev1.Image{Id: r.id(i), RepoTags: []string{i}})
	}
	return answer, r.listing
}

func (r *runtime) ImageStatus(_ context.Context, q *runtimev1.ImageStatusRequest) (*runtimev1.ImageStatusResponse, error) {
	if !slices.Contains(r.images, q.Image.Image) {
		return &runtimev1.ImageStatusResponse{}, nil
	}
	return &runtimev1.ImageStatusResponse{Image: &runtimev1.Image{Id: r.id(q.Image.Image), RepoTags: []string{q.Image.Image}}}, nil
}

func (r *runtime) PullImage(_ context.Context, q *runtimev1.PullImageRequest) (*runtimev1.PullImageResponse, error) {
	*r.log = append(*r.log, "pull "+q.Image.Image)
	if r.fail == nil {
		r.images = append(r.images, q.Image.Image)
	}
	return &runtimev1.PullImageResponse{ImageRef: r.id(q.Image.Image)}, r.fail
}

func (r *runtime) RemoveImage(_ context.Context, q *runtimev1.RemoveImageRequest) (*runtimev1.RemoveImageResponse, error) {
	*r.log = append(*r.log, "remove "+q.Image.Image)
	r.images = slices.DeleteFunc(r.images, func(i string) bool { return i == q.Image.Image })
	return &runtimev1.RemoveImageResponse{}, nil
}

func (r *runtime) ImageFsInfo(context.Context, *runtimev1.ImageFsInfoRequest) (*runtimev1.ImageFsInfoResponse, error) {
	return &runtimev1.ImageFsInfoResponse{ImageFilesystems: []*runtimev1.FilesystemUsage{{FsId: &runtimev1.FilesystemIdentifier{Mountpoint: stdcmp.Or(r.mountpoint, "/images")}}}}, nil
}

// newServer makes a server in front of a runtime, in the boot "second".
func newServer(t *testing.T, r *runtime, memory pulls) (*images.Server, string) {
	t.Helper()
	return newServerOf(t, r, memory, func(*images.Config) {})
}

// newServerOf is newServer with changes to its configuration.
func newServerOf(t *testing.T, r *runtime, memory pulls, change func(*images.Config)) (*images.Server, string) {
	t.Helper()
	dir := t.TempDir()
	listen := func(name string) (net.Listener, error) { return net.Listen("unix", filepath.Join(dir, name)) }
	l, err := listen("runtime")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	runtimev1.RegisterImageServiceServer(server, r)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	config := images.Config{
		Listen: func() (net.Listener, error) { return listen("kubelet") }, Images: filepath.Join(dir, "runtime"), Runtime: filepath.Join(dir, "runtime"),
		API: &rest.Config{Host: "localhost:1"}, Memory: memory, Boot: "second", BootTime: time.Now, Complete: pulls{map[string][]byte{"boot": []byte("second")}, new([]string)},
		Sync: func(path string) error { *r.log = append(*r.log, "sync "+path); return nil },
	}
	change(&config)
	s, err := images.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return s, filepath.Join(dir, "kubelet")
}

// serve serves s at its socket until stop, and returns a client of it.
func serve(t *testing.T, s *images.Server, socket string) (client runtimev1.ImageServiceClient, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- s.Serve(ctx, func() { close(ready) }) }()
	<-ready
	conn, err := cri.Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return runtimev1.NewImageServiceClient(conn), func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

// A pull is stored before its begin, and forgotten when its files are on the disk, also if it
// failed: the kubelet's answer comes after it.
func TestPullIsOnTheDiskWhenItEnds(t *testing.T) {
	for name, fail := range map[string]error{"succeeds": nil, "fails": errors.New("no such image")} {
		t.Run(name, func(t *testing.T) {
			var log []string
			s, socket := newServer(t, &runtime{fail: fail, log: &log}, pulls{map[string][]byte{}, &log})
			client, stop := serve(t, s, socket)
			_, err := client.PullImage(t.Context(), &runtimev1.PullImageRequest{Image: &runtimev1.ImageSpec{Image: "a/b"}})
			if (err != nil) != (fail != nil) {
				t.Errorf("the pull: %v, want %v", err, fail)
			}
			stop()
			if diff := cmp.Diff([]string{"store a/b", "pull a/b", "sync /images", "forget a/b"}, log); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// At the start after a power cut an image whose pull was interrupted is removed, but not one that
// was complete before; if only edgecore ended, its files are written to the disk.
func TestSettle(t *testing.T) {
	tests := map[string]struct {
		images []string
		stored string
		want   []string
	}{
		"no pull":                    {[]string{"a/b"}, "", nil},
		"pulled":                     {[]string{"a/b"}, `{"boot":"first"}`, []string{"remove a/b", "forget a/b"}},
		"not pulled":                 {nil, `{"boot":"first"}`, []string{"forget a/b"}},
		"complete before":            {[]string{"a/b"}, `{"boot":"first","before":["x","a"]}`, []string{"forget a/b"}},
		"pulled as another image":    {[]string{"a/b"}, `{"boot":"first","before":["x"]}`, []string{"remove a/b", "forget a/b"}},
		"in this boot":               {[]string{"a/b"}, `{"boot":"second"}`, []string{"sync /images", "forget a/b"}},
		"a record that is not valid": {[]string{"a/b"}, `{`, []string{"remove a/b", "forget a/b"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var log []string
			memory := pulls{map[string][]byte{}, &log}
			if test.stored != "" {
				memory.kept["a/b"] = []byte(test.stored)
			}
			s, _ := newServer(t, &runtime{images: test.images, log: &log}, memory)
			if err := s.Settle(t.Context()); (err != nil) != (test.stored == "{") {
				t.Error(err)
			}
			if diff := cmp.Diff(test.want, log); diff != "" {
				t.Error(diff)
			}
			if len(memory.kept) > 0 {
				t.Errorf("it has still stored %s", memory.kept)
			}
		})
	}
}

// A pull or a question of edgecore's own modules may come before Settle: the image of an
// interrupted pull is removed first, or it would count as complete. Settle leaves the pull alone.
func TestRequestsSettleFirst(t *testing.T) {
	ask := map[string]func(runtimev1.ImageServiceClient) error{
		"a pull": func(c runtimev1.ImageServiceClient) error {
			_, err := c.PullImage(t.Context(), &runtimev1.PullImageRequest{Image: &runtimev1.ImageSpec{Image: "a/b"}})
			return err
		},
		"a question": func(c runtimev1.ImageServiceClient) error {
			_, err := c.ImageStatus(t.Context(), &runtimev1.ImageStatusRequest{Image: &runtimev1.ImageSpec{Image: "a/b"}})
			return err
		},
	}
	want := map[string][]string{
		"a pull":     {"remove a/b", "forget a/b", "store a/b", "pull a/b", "sync /images", "forget a/b"},
		"a question": {"remove a/b", "forget a/b"},
	}
	for name, do := range ask {
		t.Run(name, func(t *testing.T) {
			var log []string
			s, socket := newServer(t, &runtime{images: []string{"a/b"}, log: &log}, pulls{map[string][]byte{"a/b": []byte(`{"boot":"first"}`)}, &log})
			client, stop := serve(t, s, socket)
			if err := do(client); err != nil {
				t.Error(err)
			}
			if err := s.Settle(t.Context()); err != nil {
				t.Error(err)
			}
			stop()
			if diff := cmp.Diff(want[name], log); diff != "" {
				t.Error(diff)
			}
		})
	}
}
