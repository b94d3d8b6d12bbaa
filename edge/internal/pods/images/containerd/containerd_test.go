package containerd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	contentv1 "github.com/containerd/containerd/api/services/content/v1"
	imagesv1 "github.com/containerd/containerd/api/services/images/v1"
	snapshotsv1 "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/skerry-io/skerry/build/image"
	"github.com/skerry-io/skerry/edge/internal/pods/cri"
	"github.com/skerry-io/skerry/edge/internal/pods/images/containerd"
)

const (
	program = "the content of a program"
	name    = "skerry.local/pause:1"
)

// real is a containerd of its own, without CRI, and a client of it.
type real struct {
	*containerd.Client
	t    *testing.T
	ctx  context.Context
	conn *grpc.ClientConn
	root string
}

// newReal starts containerd with directories of its own, in a mount namespace of its own.
func newReal(t *testing.T) *real {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("containerd needs root")
	}
	dir := t.TempDir()
	root, socket, config := filepath.Join(dir, "root"), filepath.Join(dir, "s"), filepath.Join(dir, "config.toml")
	text := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\", \"io.containerd.internal.v1.opt\"]\n[grpc]\naddress = %q\n", root, filepath.Join(dir, "state"), socket)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command("containerd", "--config", config)
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	conn, err := cri.Dial("unix://" + socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx := metadata.AppendToOutgoingContext(t.Context(), "containerd-namespace", "k8s.io")
	if _, err := imagesv1.NewImagesClient(conn).List(ctx, &imagesv1.ListImagesRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	return &real{containerd.New(conn, filepath.Join(root, "io.containerd.snapshotter.v1.native")), t, ctx, conn, root}
}

// archive makes an archive of an image with one program.
func (r *real) archive() string {
	r.t.Helper()
	var b bytes.Buffer
	if err := image.Write(&b, name, []byte(program)); err != nil {
		r.t.Fatal(err)
	}
	file := filepath.Join(r.t.TempDir(), "image.tar")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return file
}

// unpacked are the contents of the files app in all snapshots.
func (r *real) unpacked() (all []string) {
	r.t.Helper()
	files, err := filepath.Glob(filepath.Join(r.root, "io.containerd.snapshotter.v1.native/snapshots/*/app"))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			r.t.Fatal(err)
		}
		all = append(all, string(raw))
	}
	return all
}

// expect waits for the unpacked programs: containerd removes directories later.
func (r *real) expect(step string, want ...string) {
	r.t.Helper()
	for end := time.Now().Add(30 * time.Second); !slices.Equal(r.unpacked(), want); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("%s: %s", step, cmp.Diff(want, r.unpacked()))
		}
	}
}

// damage empties the unpacked program, as a power cut does.
func (r *real) damage() {
	r.t.Helper()
	files, _ := filepath.Glob(filepath.Join(r.root, "io.containerd.snapshotter.v1.native/snapshots/*/app"))
	for _, f := range files {
		if err := os.Truncate(f, 0); err != nil {
			r.t.Fatal(err)
		}
	}
	r.expect("damaged", "")
}

func (r *real) images() []*imagesv1.Image {
	r.t.Helper()
	answer, err := imagesv1.NewImagesClient(r.conn).List(r.ctx, &imagesv1.ListImagesRequest{})
	if err != nil {
		r.t.Fatal(err)
	}
	return answer.Images
}

// collect has containerd's garbage collection run: a removed image is one of its reasons.
func (r *real) collect() {
	r.t.Helper()
	client := imagesv1.NewImagesClient(r.conn)
	if _, err := client.Create(r.ctx, &imagesv1.CreateImageRequest{Image: &imagesv1.Image{Name: "other", Target: r.images()[0].Target}}); err != nil {
		r.t.Fatal(err)
	}
	if _, err := client.Delete(r.ctx, &imagesv1.DeleteImageRequest{Name: "other", Sync: true}); err != nil {
		r.t.Fatal(err)
	}
}

// The image is there when its layers are unpacked and written: not before, and not if writing has
// failed. It survives containerd's garbage collection.
func TestImport(t *testing.T) {
	r := newReal(t)
	file := r.archive()
	failure := errors.New("the disk fails")
	if _, err := r.Import(t.Context(), file, name, func() error { return failure }); !errors.Is(err, failure) {
		t.Errorf("an import that was not written: %v", err)
	}
	if all := r.images(); len(all) > 0 {
		t.Errorf("the image is there: %v", all)
	}
	for range 2 { // the second has everything there
		id, err := r.Import(t.Context(), file, name, func() error {
			r.expect("written", program)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := contentv1.NewContentClient(r.conn).Info(r.ctx, &contentv1.InfoRequest{Digest: id}); err != nil {
			t.Errorf("the ID %q: %v", id, err)
		}
		if all := r.images(); len(all) != 1 || all[0].Name != name {
			t.Errorf("the images: %v", all)
		}
	}
	r.collect()
	r.expect("collected", program)
}

// Layers that an earlier import has unpacked and not written are unpacked again.
func TestImportReplacesLayers(t *testing.T) {
	r := newReal(t)
	file := r.archive()
	if _, err := r.Import(t.Context(), file, name, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	r.damage()
	if _, err := r.Import(t.Context(), file, name, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	r.expect("imported again", program)
}

// Unpacked layers are removed where nothing needs them, and unpacked again from their blobs.
func TestEveryday_29_LayersAreUnpackedAgain(t *testing.T) {
	r := newReal(t)
	if _, err := r.Import(t.Context(), r.archive(), name, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	r.damage()
	remove := func(keep ...string) {
		t.Helper()
		if err := r.Remove(t.Context(), name, keep); err != nil {
			t.Fatal(err)
		}
	}
	remove(name)
	r.expect("another image has them", "")

	snapshots := snapshotsv1.NewSnapshotsClient(r.conn)
	list, err := snapshots.List(r.ctx, &snapshotsv1.ListSnapshotsRequest{Snapshotter: "native"})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := list.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := snapshots.Prepare(r.ctx, &snapshotsv1.PrepareSnapshotRequest{Snapshotter: "native", Key: "container", Parent: answer.Info[0].Name}); err != nil {
		t.Fatal(err)
	}
	remove()
	r.expect("a container has them", "", "")
	if _, err := snapshots.Remove(r.ctx, &snapshotsv1.RemoveSnapshotRequest{Snapshotter: "native", Key: "container"}); err != nil {
		t.Fatal(err)
	}

	remove()
	r.expect("removed")
	for range 2 {
		if err := r.Unpack(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		r.expect("unpacked", program)
	}
	r.collect()
	r.expect("collected", program)
}

// Nothing is removed that can't be unpacked again, and images that are not there have no layers.
func TestLayersWithoutBlobsStay(t *testing.T) {
	r := newReal(t)
	if _, err := r.Import(t.Context(), r.archive(), name, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	for _, f := range func() []string {
		all, _ := filepath.Glob(filepath.Join(r.root, "io.containerd.content.v1.content/blobs/sha256/*"))
		return all
	}() {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(raw), "{") {
			if _, err := contentv1.NewContentClient(r.conn).Delete(r.ctx, &contentv1.DeleteContentRequest{Digest: "sha256:" + filepath.Base(f)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := r.Remove(t.Context(), name, nil); err != nil {
		t.Error(err)
	}
	r.expect("without its blob", program)
	for what, do := range map[string]func() error{
		"unpack": func() error { return r.Unpack(t.Context(), "skerry.local/none:1") },
		"remove": func() error { return r.Remove(t.Context(), "skerry.local/none:1", nil) },
	} {
		if err := do(); err != nil {
			t.Errorf("%s an image that is not there: %v", what, err)
		}
	}
}
