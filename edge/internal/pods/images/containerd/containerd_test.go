package containerd_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	contentv1 "github.com/containerd/containerd/api/services/content/v1"
	leasesv1 "github.com/containerd/containerd/api/services/leases/v1"
	"google.golang.org/grpc/metadata"

	"github.com/skerry-io/skerry/edge/internal/pods/images/containerd"
	"github.com/skerry-io/skerry/tests/cluster/runtime"
)

const program = runtime.Program

// client is a client of a containerd of its own.
type client struct {
	*containerd.Client
	*runtime.Runtime
	t *testing.T
}

func newClient(t *testing.T) *client {
	t.Helper()
	r := runtime.Start(t)
	c, err := containerd.New(r.Context, r.Conn, r.Files())
	if err != nil {
		t.Fatal(err)
	}
	return &client{c, r, t}
}

// imported imports an image, and returns it as CRI reports it.
func (c *client) imported() containerd.Image {
	c.t.Helper()
	id, err := c.Import(c.t.Context(), c.Archive(), runtime.Name, func() error { return nil })
	if err != nil {
		c.t.Fatal(err)
	}
	return containerd.Image{ID: id, Names: []string{"skerry.local/none:1", runtime.Name}}
}

func (c *client) find(of containerd.Image) containerd.Layers {
	c.t.Helper()
	l, unpacked, err := c.Find(c.t.Context(), of)
	if err != nil || !unpacked {
		c.t.Fatalf("unpacked: %v, %v", unpacked, err)
	}
	return l
}

func (c *client) discard(of containerd.Image) {
	c.t.Helper()
	if err := c.Discard(c.t.Context(), []containerd.Image{of}); err != nil {
		c.t.Fatal(err)
	}
}

// same reports whether an image's layers are those.
func (c *client) same(l containerd.Layers) bool {
	c.t.Helper()
	same, err := c.Same(c.t.Context(), l)
	if err != nil {
		c.t.Fatal(err)
	}
	return same
}

// The image is there when its layers are unpacked and written: not before, and not if writing has
// failed. It survives containerd's garbage collection.
func TestImport(t *testing.T) {
	c := newClient(t)
	file := c.Archive()
	failure := errors.New("the disk fails")
	if _, err := c.Import(t.Context(), file, runtime.Name, func() error { return failure }); !errors.Is(err, failure) {
		t.Errorf("an import that was not written: %v", err)
	}
	if all := c.Images(); len(all) > 0 {
		t.Errorf("the image is there: %v", all)
	}
	for range 2 { // the second has everything there
		id, err := c.Import(t.Context(), file, runtime.Name, func() error {
			c.Expect("written", program)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := contentv1.NewContentClient(c.Conn).Info(c.Context, &contentv1.InfoRequest{Digest: id}); err != nil {
			t.Errorf("the ID %q: %v", id, err)
		}
		if all := c.Images(); len(all) != 1 || all[0].Name != runtime.Name {
			t.Errorf("the images: %v", all)
		}
	}
	c.Collect()
	c.Expect("collected", program)
}

// Unpacked layers are removed where nothing needs them, and unpacked again from their blobs. They
// are told from those of before.
func TestEveryday_29_LayersAreUnpackedAgain(t *testing.T) {
	c := newClient(t)
	i := c.imported()
	before := c.find(i)
	c.Damage()
	c.Use("container", before.Top)
	c.discard(i)
	c.Expect("a container has them", "", "")
	if !c.same(before) {
		t.Error("the layers are others")
	}
	c.Unuse("container")
	c.discard(i)
	c.Expect("removed")
	if _, unpacked, err := c.Find(t.Context(), i); unpacked || err != nil {
		t.Errorf("unpacked: %v, %v", unpacked, err)
	}
	for range 2 {
		l, err := c.Unpack(t.Context(), i)
		if err != nil || l != c.find(i) || l.Top != before.Top {
			t.Fatalf("%+v, %v", l, err)
		}
		c.Expect("unpacked", program)
	}
	if c.same(before) {
		t.Error("the layers are those of before")
	}
	c.Collect()
	c.Expect("collected", program)
}

// An import that was interrupted by a power cut has a lease, layers that were not written, and one
// on top of them that is not whole. All go; what an import has that is under way stays.
func TestEveryday_29_InterruptedImportIsUndone(t *testing.T) {
	c := newClient(t)
	i := c.imported()
	c.Damage()
	made, err := leasesv1.NewLeasesClient(c.Conn).Create(c.Context, &leasesv1.CreateRequest{ID: "import", Labels: map[string]string{
		"containerd.io/gc.expire": time.Now().Add(time.Hour).Format(time.RFC3339),
	}})
	if err != nil {
		t.Fatal(err)
	}
	c.Prepare(metadata.AppendToOutgoingContext(c.Context, "containerd-lease", made.Lease.ID), "extract-1", c.find(i).Top, nil)
	if err := c.DeleteExpiring(t.Context(), time.Now().Add(-time.Minute)); err != nil {
		t.Fatal(err)
	}
	c.discard(i)
	c.Expect("under way", "", "")
	if err := c.DeleteExpiring(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	c.Expect("interrupted")
	if _, err := c.Unpack(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	c.Expect("unpacked", program)
}

// Nothing is removed that can't be unpacked again. An image that is not there is an error: it may
// have layers under another name.
func TestLayersWithoutBlobsStay(t *testing.T) {
	c := newClient(t)
	i := c.imported()
	blobs, err := filepath.Glob(filepath.Join(c.Root, "io.containerd.content.v1.content/blobs/sha256/*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range blobs {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(raw), "{") {
			if _, err := contentv1.NewContentClient(c.Conn).Delete(c.Context, &contentv1.DeleteContentRequest{Digest: "sha256:" + filepath.Base(f)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.discard(i)
	c.Expect("without its blob", program)
	if _, err := c.Unpack(t.Context(), containerd.Image{ID: i.ID}); !errors.Is(err, containerd.ErrUnreadable) {
		t.Errorf("an image that containerd has under another name: %v", err)
	}
}

// A path that no snapshotter of containerd has is foreign: an image can be imported, and its layers
// are left to containerd.
func TestNew_ForeignSnapshotter(t *testing.T) {
	c := newClient(t)
	elsewhere, err := containerd.New(c.Context, c.Conn, "/var/lib/elsewhere")
	if err != nil {
		t.Fatal(err)
	}
	id, err := elsewhere.Import(t.Context(), c.Archive(), runtime.Name, func() error { return nil })
	if err != nil || len(c.Images()) != 1 {
		t.Fatalf("%v, %v", c.Images(), err)
	}
	c.Expect("imported")
	if _, err := elsewhere.Unpack(t.Context(), containerd.Image{ID: id, Names: []string{runtime.Name}}); !errors.Is(err, containerd.ErrForeign) {
		t.Errorf("another's files: %v", err)
	}
	c.Expect("not unpacked")
}
