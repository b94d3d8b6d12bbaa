package images_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skerry-io/skerry/edge/internal/pods/images"
	"github.com/skerry-io/skerry/edge/internal/pods/images/containerd"
	realruntime "github.com/skerry-io/skerry/tests/cluster/runtime"
)

const program = realruntime.Program

// device is a real containerd behind a played CRI, of whose image an edgecore knows in each boot
// what the boot before has stored. A power cut is played by the emptied program.
type device struct {
	*realruntime.Runtime
	t      *testing.T
	cri    *runtime
	log    []string
	stored pulls // the complete images
	pulls  pulls
	image  containerd.Image
	top    string // its topmost layer
}

func newDevice(t *testing.T) *device {
	t.Helper()
	d := &device{Runtime: realruntime.Start(t), t: t}
	d.stored, d.pulls = pulls{map[string][]byte{}, new([]string)}, pulls{map[string][]byte{}, new([]string)}
	client, err := containerd.New(d.Context, d.Conn, d.Files())
	if err != nil {
		t.Fatal(err)
	}
	id, err := client.Import(t.Context(), d.Archive(), realruntime.Name, func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	d.image = containerd.Image{ID: id, Names: []string{realruntime.Name}}
	l, _, err := client.Find(t.Context(), d.image)
	if err != nil {
		t.Fatal(err)
	}
	d.top = l.Top
	d.cri = &runtime{ids: map[string]string{realruntime.Name: id}, images: []string{realruntime.Name}, mountpoint: d.Files(), log: &d.log}
	return d
}

// boot begins a boot, with a socket for the kubelet. settle is the start of the kubelet.
func (d *device) boot(name string, settle bool) (runtimev1.ImageServiceClient, *images.Server) {
	d.t.Helper()
	s, socket := newServerOf(d.t, d.cri, d.pulls, func(c *images.Config) { c.Complete, c.Boot, c.Runtime = d.stored, name, d.Endpoint })
	if settle {
		if err := s.Settle(d.t.Context()); err != nil {
			d.t.Fatal(err)
		}
	}
	client, stop := serve(d.t, s, socket)
	d.t.Cleanup(stop)
	d.log = nil
	return client, s
}

// start asks as the kubelet does before it creates a container, and expects what is logged.
func (d *device) start(client runtimev1.ImageServiceClient, want ...string) {
	d.t.Helper()
	if _, err := client.ImageStatus(d.t.Context(), &runtimev1.ImageStatusRequest{Image: &runtimev1.ImageSpec{Image: realruntime.Name}}); err != nil {
		d.t.Fatal(err)
	}
	if diff := cmp.Diff(want, d.log); diff != "" {
		d.t.Error(diff)
	}
	d.log = nil
}

const written = "sync "

// An image that was imported and not used before a power cut is unpacked again; one that was used
// has been written.
func TestImportedImageAfterAPowerCut(t *testing.T) {
	d := newDevice(t)
	d.stored.kept["boot"] = []byte("first") // the image came after the start
	d.boot("first", true)
	d.Damage()
	client, _ := d.boot("second", true)
	d.start(client, written+d.Files())
	d.Expect("unpacked again", program)
	d.start(client)
	client, _ = d.boot("third", true)
	d.start(client)
	d.Expect("written before", program)
}

// An image whose layers a dead container holds stays doubtful, also through a pull, which keeps
// them, and through another start of edgecore; when the container is gone it is unpacked again.
func TestImageInUseAfterAPowerCut(t *testing.T) {
	d := newDevice(t)
	d.stored.kept["boot"] = []byte("first")
	d.Damage()
	d.Use("dead", d.top)
	client, _ := d.boot("second", true)
	d.start(client)
	if _, err := client.PullImage(t.Context(), &runtimev1.PullImageRequest{Image: &runtimev1.ImageSpec{Image: realruntime.Name}}); err != nil {
		t.Fatal(err)
	}
	client, _ = d.boot("second", true)
	d.start(client)
	d.Expect("in use", "", "")
	d.Unuse("dead")
	client, _ = d.boot("third", true)
	d.start(client, written+d.Files())
	d.Expect("unpacked again", program)
}

// An image that comes again is another one, though its ID is the same: while edgecore runs, and
// while it does not.
func TestImageIsImportedAgain(t *testing.T) {
	d := newDevice(t)
	kubelet, _ := d.boot("first", true) // the first start writes it
	client, err := containerd.New(d.Context, d.Conn, d.Files())
	if err != nil {
		t.Fatal(err)
	}
	for _, restart := range []bool{false, true} {
		if err := client.Discard(t.Context(), []containerd.Image{d.image}); err != nil {
			t.Fatal(err)
		}
		d.Expect("removed")
		if _, err := client.Unpack(t.Context(), d.image); err != nil { // as ctr does
			t.Fatal(err)
		}
		if restart {
			kubelet, _ = d.boot("first", true)
		}
		d.start(kubelet, written+d.Files())
		d.start(kubelet)
	}
}

// At the first start of a device an image that is not unpacked is not complete.
func TestFirstStart(t *testing.T) {
	d := newDevice(t)
	client, err := containerd.New(d.Context, d.Conn, d.Files())
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Discard(t.Context(), []containerd.Image{d.image}); err != nil {
		t.Fatal(err)
	}
	kubelet, _ := d.boot("first", true)
	d.start(kubelet, written+d.Files())
	d.Expect("unpacked", program)
}

// Before the survey of a boot has succeeded, nothing counts as complete: what is there may be what
// a power cut has left.
func TestSurveyFails(t *testing.T) {
	d := newDevice(t)
	d.stored.kept["boot"] = []byte("first")
	d.Damage()
	d.cri.listing = errors.New("not initialized")
	client, s := d.boot("second", false)
	if err := s.Settle(t.Context()); err == nil {
		t.Error("the survey has succeeded")
	}
	d.start(client, written+d.Files())
	if len(d.stored.kept) != 1 || string(d.stored.kept["boot"]) != "first" {
		t.Errorf("it has stored %q", d.stored.kept)
	}
	d.cri.listing = nil
	d.start(client, written+d.Files()) // the question settles first
	d.Expect("unpacked again", program)
}

// A pull that was written, and whose record could not be deleted, is no interrupted one.
func TestSettleKeepsACompleteImage(t *testing.T) {
	d := newDevice(t)
	d.boot("first", true)
	d.pulls.kept[realruntime.Name] = []byte(`{"boot":"first"}`)
	d.boot("second", true)
	if !slices.Contains(d.cri.images, realruntime.Name) || len(d.pulls.kept) > 0 {
		t.Errorf("there are %q; stored %q", d.cri.images, d.pulls.kept)
	}
}

// Where the kubelet asks the runtime itself, nothing is known of images.
func TestWithoutTheKubelet(t *testing.T) {
	d := newDevice(t)
	s, _ := newServerOf(t, d.cri, d.pulls, func(c *images.Config) { c.Complete, c.Boot, c.Runtime = nil, "second", d.Endpoint })
	if err := s.Settle(context.Background()); err != nil || len(d.log) > 0 {
		t.Errorf("%v, %q", err, d.log)
	}
	d.Expect("as it was", program)
}
