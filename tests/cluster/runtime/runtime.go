// Package runtime starts a containerd for a test, with directories and a mount namespace of its
// own, without CRI, and looks at the files of its native snapshotter. It refuses to run without
// root, by skipping the test. A Runtime belongs to its test.
package runtime

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	imagesv1 "github.com/containerd/containerd/api/services/images/v1"
	snapshotsv1 "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/skerry-io/skerry/build/image"
)

const (
	// Program is the content of the program /app in the images of Archive.
	Program = "the content of a program"
	// Name is their name.
	Name = "skerry.local/pause:1"
)

// Runtime is a containerd.
type Runtime struct {
	T        *testing.T
	Context  context.Context // for requests to it, in Kubernetes' namespace
	Conn     *grpc.ClientConn
	Endpoint string
	Root     string
}

// Start starts containerd until the test ends.
func Start(t *testing.T) *Runtime {
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
	endpoint := "unix://" + socket
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx := metadata.AppendToOutgoingContext(t.Context(), "containerd-namespace", "k8s.io")
	if _, err := imagesv1.NewImagesClient(conn).List(ctx, &imagesv1.ListImagesRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	return &Runtime{t, ctx, conn, endpoint, root}
}

// Files is the directory of its snapshotter, as CRI reports it.
func (r *Runtime) Files() string { return filepath.Join(r.Root, "io.containerd.snapshotter.v1.native") }

// Archive makes an archive of an image with one program.
func (r *Runtime) Archive() string {
	r.T.Helper()
	var b bytes.Buffer
	if err := image.Write(&b, Name, []byte(Program)); err != nil {
		r.T.Fatal(err)
	}
	file := filepath.Join(r.T.TempDir(), "image.tar")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		r.T.Fatal(err)
	}
	return file
}

func (r *Runtime) files() []string {
	r.T.Helper()
	files, err := filepath.Glob(filepath.Join(r.Files(), "snapshots/*/app"))
	if err != nil {
		r.T.Fatal(err)
	}
	return files
}

// unpacked are the contents of the programs in all snapshots.
func (r *Runtime) unpacked() (all []string) {
	r.T.Helper()
	for _, f := range r.files() {
		raw, err := os.ReadFile(f)
		if err != nil && !os.IsNotExist(err) {
			r.T.Fatal(err)
		}
		all = append(all, string(raw))
	}
	return all
}

// Expect waits for the contents of the programs in all snapshots: containerd removes directories
// later.
func (r *Runtime) Expect(step string, want ...string) {
	r.T.Helper()
	for end := time.Now().Add(30 * time.Second); !slices.Equal(r.unpacked(), want); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			r.T.Fatalf("%s: %s", step, cmp.Diff(want, r.unpacked()))
		}
	}
}

// Damage empties the unpacked program, as a power cut does.
func (r *Runtime) Damage() {
	r.T.Helper()
	for _, f := range r.files() {
		if err := os.Truncate(f, 0); err != nil {
			r.T.Fatal(err)
		}
	}
	r.Expect("damaged", "")
}

// Prepare makes a snapshot on top of another, as the unpacking of a further layer has it.
func (r *Runtime) Prepare(ctx context.Context, key, on string, labels map[string]string) {
	r.T.Helper()
	if _, err := snapshotsv1.NewSnapshotsClient(r.Conn).Prepare(ctx, &snapshotsv1.PrepareSnapshotRequest{Snapshotter: "native", Key: key, Parent: on, Labels: labels}); err != nil {
		r.T.Fatal(err)
	}
}

// Use makes a snapshot on top of another that stays, as that of a container.
func (r *Runtime) Use(key, on string) {
	r.T.Helper()
	r.Prepare(r.Context, key, on, map[string]string{"containerd.io/gc.root": "now"})
}

// Unuse removes the snapshot of Use.
func (r *Runtime) Unuse(key string) {
	r.T.Helper()
	if _, err := snapshotsv1.NewSnapshotsClient(r.Conn).Remove(r.Context, &snapshotsv1.RemoveSnapshotRequest{Snapshotter: "native", Key: key}); err != nil {
		r.T.Fatal(err)
	}
}

// Images are its images.
func (r *Runtime) Images() []*imagesv1.Image {
	r.T.Helper()
	answer, err := imagesv1.NewImagesClient(r.Conn).List(r.Context, &imagesv1.ListImagesRequest{})
	if err != nil {
		r.T.Fatal(err)
	}
	return answer.Images
}

// Collect has its garbage collection run: a removed image is one of its reasons.
func (r *Runtime) Collect() {
	r.T.Helper()
	client := imagesv1.NewImagesClient(r.Conn)
	if _, err := client.Create(r.Context, &imagesv1.CreateImageRequest{Image: &imagesv1.Image{Name: "other", Target: r.Images()[0].Target}}); err != nil {
		r.T.Fatal(err)
	}
	if _, err := client.Delete(r.Context, &imagesv1.DeleteImageRequest{Name: "other", Sync: true}); err != nil {
		r.T.Fatal(err)
	}
}
