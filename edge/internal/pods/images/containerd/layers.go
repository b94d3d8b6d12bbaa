package containerd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	contentv1 "github.com/containerd/containerd/api/services/content/v1"
	diffv1 "github.com/containerd/containerd/api/services/diff/v1"
	imagesv1 "github.com/containerd/containerd/api/services/images/v1"
	snapshotsv1 "github.com/containerd/containerd/api/services/snapshots/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// uncompressed is the label of a layer with the digest of its content.
const uncompressed = "containerd.io/uncompressed"

// Unpack unpacks the layers of an image that have not been. containerd does so when an image is
// pulled, but else only when a container of it is created. An image of another runtime has none.
func (c *Client) Unpack(ctx context.Context, name string) error {
	i, err := c.image(within(ctx), name)
	if i == nil {
		return err
	}
	ctx, end, err := c.lease(ctx)
	if err != nil {
		return err
	}
	defer end()
	return c.unpack(ctx, i)
}

// Remove removes the unpacked layers of an image that no container and no image of keep uses, so
// that they are unpacked again. It leaves all where they can't be: one layer's own blob is gone, as
// with containerd's discard_unpacked_layers.
func (c *Client) Remove(ctx context.Context, name string, keep []string) error {
	ctx = within(ctx)
	i, err := c.image(ctx, name)
	if i == nil {
		return err
	}
	contents := contentv1.NewContentClient(c.conn)
	for _, d := range i.parts {
		_, err := contents.Info(ctx, &contentv1.InfoRequest{Digest: d.Digest})
		if status.Code(err) == codes.NotFound {
			return nil
		}
		if err != nil {
			return fmt.Errorf("asking for %s: %w", d.Digest, err)
		}
	}
	var kept []string
	for _, name := range keep {
		k, err := c.image(ctx, name)
		if err != nil {
			return err
		}
		if k != nil {
			kept = append(kept, chains(k.diffIDs)...)
		}
	}
	return c.remove(ctx, i, kept)
}

// image finds the image of that name, for this architecture; nil if there is none, or if the
// runtime is not containerd.
func (c *Client) image(ctx context.Context, name string) (*image, error) {
	answer, err := imagesv1.NewImagesClient(c.conn).Get(ctx, &imagesv1.GetImageRequest{Name: name})
	switch status.Code(err) {
	case codes.OK:
	case codes.NotFound, codes.Unimplemented:
		return nil, nil
	default:
		return nil, fmt.Errorf("asking for the image %s: %w", name, err)
	}
	t := answer.Image.GetTarget()
	r := &resolver{blob: func(d descriptor) ([]byte, error) { return c.read(ctx, d) }, arch: runtime.GOARCH}
	i, err := r.resolve([]descriptor{{MediaType: t.GetMediaType(), Digest: t.GetDigest(), Size: t.GetSize()}}, 0)
	if err != nil {
		return nil, fmt.Errorf("the image %s: %w", name, err)
	}
	return i, nil
}

// read reads a blob of JSON.
func (c *Client) read(ctx context.Context, d descriptor) ([]byte, error) {
	if d.Size > MaxBlob {
		return nil, fmt.Errorf("%s has %d bytes", d.Digest, d.Size)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream
	stream, err := contentv1.NewContentClient(c.conn).Read(ctx, &contentv1.ReadContentRequest{Digest: d.Digest})
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", d.Digest, err)
	}
	var data []byte
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return data, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", d.Digest, err)
		}
		if data = append(data, part.Data...); len(data) > MaxBlob {
			return nil, fmt.Errorf("%s has more than %d bytes", d.Digest, MaxBlob)
		}
	}
}

// chains are the names of an image's snapshots, the lowest layer's first (OCI image specification,
// config.md, ChainID).
func chains(diffIDs []string) []string {
	var all []string
	for n, id := range diffIDs {
		if n > 0 {
			sum := sha256.Sum256([]byte(all[n-1] + " " + id))
			id = "sha256:" + hex.EncodeToString(sum[:])
		}
		all = append(all, id)
	}
	return all
}

// unpack unpacks an image's layers that have not been. ctx has a lease.
func (c *Client) unpack(ctx context.Context, i *image) error {
	client, contents := snapshotsv1.NewSnapshotsClient(c.conn), contentv1.NewContentClient(c.conn)
	parent := ""
	for n, chain := range chains(i.diffIDs) {
		_, err := client.Stat(ctx, &snapshotsv1.StatSnapshotRequest{Snapshotter: c.snapshotter, Key: chain})
		if status.Code(err) == codes.NotFound {
			layer := i.parts[n+1]
			if err = c.apply(ctx, layer, i.diffIDs[n], parent, chain); err == nil {
				err = label(ctx, contents, layer.Digest, uncompressed, i.diffIDs[n])
			}
		}
		if err != nil {
			return fmt.Errorf("unpacking %s: %w", i.parts[n+1].Digest, err)
		}
		parent = chain
	}
	if parent == "" {
		return nil
	}
	// containerd keeps the layers as long as the configuration.
	return label(ctx, contents, i.parts[0].Digest, "containerd.io/gc.ref.snapshot."+c.snapshotter, parent)
}

// apply unpacks one layer, and names its snapshot.
func (c *Client) apply(ctx context.Context, layer descriptor, diffID, parent, chain string) (err error) {
	client := snapshotsv1.NewSnapshotsClient(c.conn)
	key := fmt.Sprintf("extract-skerry-%d %s", time.Now().UnixNano(), chain)
	active, err := client.Prepare(ctx, &snapshotsv1.PrepareSnapshotRequest{Snapshotter: c.snapshotter, Key: key, Parent: parent})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_, _ = client.Remove(context.WithoutCancel(ctx), &snapshotsv1.RemoveSnapshotRequest{Snapshotter: c.snapshotter, Key: key}) // else the lease's end does
		}
	}()
	applied, err := diffv1.NewDiffClient(c.conn).Apply(ctx, &diffv1.ApplyRequest{Diff: target(layer), Mounts: active.Mounts})
	if err != nil {
		return err
	}
	if got := applied.GetApplied().GetDigest(); got != diffID {
		return fmt.Errorf("its content has the digest %s, and its image says %s", got, diffID)
	}
	_, err = client.Commit(ctx, &snapshotsv1.CommitSnapshotRequest{Snapshotter: c.snapshotter, Key: key, Name: chain})
	if status.Code(err) == codes.AlreadyExists { // another program was quicker
		_, err = client.Remove(ctx, &snapshotsv1.RemoveSnapshotRequest{Snapshotter: c.snapshotter, Key: key})
	}
	return err
}

// remove removes the snapshots of an image's layers, except for those of kept, and those that a
// container or another layer uses.
func (c *Client) remove(ctx context.Context, i *image, kept []string) error {
	client := snapshotsv1.NewSnapshotsClient(c.conn)
	for _, chain := range slices.Backward(chains(i.diffIDs)) {
		if slices.Contains(kept, chain) {
			return nil // and those below it
		}
		_, err := client.Remove(ctx, &snapshotsv1.RemoveSnapshotRequest{Snapshotter: c.snapshotter, Key: chain})
		switch status.Code(err) {
		case codes.OK, codes.NotFound:
		case codes.FailedPrecondition:
			return nil
		default:
			return fmt.Errorf("removing an unpacked layer: %w", err)
		}
	}
	return nil
}

// label gives a blob a label.
func label(ctx context.Context, client contentv1.ContentClient, digest, name, value string) error {
	info := &contentv1.Info{Digest: digest, Labels: map[string]string{name: value}}
	if _, err := client.Update(ctx, &contentv1.UpdateRequest{Info: info, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"labels." + name}}}); err != nil {
		return fmt.Errorf("labelling %s: %w", digest, err)
	}
	return nil
}
