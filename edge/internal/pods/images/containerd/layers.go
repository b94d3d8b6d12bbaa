package containerd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	contentv1 "github.com/containerd/containerd/api/services/content/v1"
	diffv1 "github.com/containerd/containerd/api/services/diff/v1"
	imagesv1 "github.com/containerd/containerd/api/services/images/v1"
	snapshotsv1 "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/api/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

const (
	// uncompressed is the label of a layer with the digest of its content.
	uncompressed = "containerd.io/uncompressed"
	// keeps is the label of a blob with the snapshot that containerd keeps as long as the blob; a
	// snapshotter's name follows.
	keeps = "containerd.io/gc.ref.snapshot."
)

var (
	// ErrForeign means that layers are not containerd's, or those of another snapshotter.
	ErrForeign = errors.New("the layers are not those of containerd's snapshotter")
	// ErrUnreadable means that containerd does not have an image, or not all of its descriptions.
	ErrUnreadable = errors.New("the image is not readable")
)

// Image is an image as CRI reports it.
type Image struct {
	ID    string   // the digest of its configuration
	Names []string // its other names
}

// Layers are the unpacked layers of an image, by the topmost. The zero value is those of an image
// without any.
type Layers struct {
	Snapshotter string    `json:"snapshotter"`
	Top         string    `json:"top"` // its snapshot's name
	Created     time.Time `json:"created"`
}

// Unpack unpacks the layers of an image that have not been. containerd does so when an image is
// pulled, but else only when a container of it is created.
func (c *Client) Unpack(ctx context.Context, of Image) (Layers, error) {
	i, err := c.image(within(ctx), of)
	if err != nil {
		return Layers{}, err
	}
	ctx, end, err := c.lease(ctx)
	if err != nil {
		return Layers{}, err
	}
	defer end()
	elsewhere, err := c.elsewhere(ctx, i)
	if err != nil {
		return Layers{}, err
	}
	if elsewhere {
		return Layers{}, ErrForeign
	}
	if err := c.unpack(ctx, i); err != nil {
		return Layers{}, err
	}
	l, unpacked, err := c.find(ctx, i)
	if err == nil && !unpacked {
		err = fmt.Errorf("the layers of %s are gone again", of.ID)
	}
	return l, err
}

// elsewhere reports whether an image is unpacked by another snapshotter alone, as that of a
// RuntimeClass.
func (c *Client) elsewhere(ctx context.Context, i *image) (bool, error) {
	answer, err := contentv1.NewContentClient(c.conn).Info(ctx, &contentv1.InfoRequest{Digest: i.parts[0].Digest})
	if err != nil {
		return false, fmt.Errorf("asking for %s: %w", i.parts[0].Digest, err)
	}
	labels := answer.GetInfo().GetLabels()
	if _, here := labels[keeps+c.snapshotter]; here {
		return false, nil
	}
	for name := range labels {
		if strings.HasPrefix(name, keeps) {
			return true, nil
		}
	}
	return false, nil
}

// Find returns the layers of an image that is unpacked, and whether it is.
func (c *Client) Find(ctx context.Context, of Image) (l Layers, unpacked bool, err error) {
	ctx = within(ctx)
	i, err := c.image(ctx, of)
	if err != nil {
		return Layers{}, false, err
	}
	return c.find(ctx, i)
}

// Same reports whether layers are those that were found before: not unpacked again, not those of
// another snapshotter.
func (c *Client) Same(ctx context.Context, l Layers) (bool, error) {
	if l == (Layers{}) {
		return true, nil
	}
	if l.Snapshotter != c.snapshotter {
		return false, nil
	}
	now, unpacked, err := c.stat(within(ctx), l.Top)
	return unpacked && now.Created.Equal(l.Created), err
}

// Discard removes the unpacked layers of images, so that they are unpacked again. Those stay that a
// container or another image needs, until it is gone; and those that can't be unpacked again, as a
// layer's own blob is gone (containerd's discard_unpacked_layers). Images that are not readable
// stay as they are.
func (c *Client) Discard(ctx context.Context, images []Image) error {
	ctx = within(ctx)
	contents := contentv1.NewContentClient(c.conn)
	for _, of := range images {
		i, err := c.image(ctx, of)
		if err == nil {
			err = c.unreference(ctx, contents, i)
		}
		if err != nil && !errors.Is(err, ErrUnreadable) {
			return err
		}
	}
	return c.collect(ctx)
}

// unreference takes from an image's configuration the label by which containerd keeps its layers.
// Removing them one by one does not do: containerd's garbage collection leaves the names of those
// that it has removed with the layers below, which then can't be (1.6.20).
func (c *Client) unreference(ctx context.Context, contents contentv1.ContentClient, i *image) error {
	for _, d := range i.parts {
		_, err := contents.Info(ctx, &contentv1.InfoRequest{Digest: d.Digest})
		if status.Code(err) == codes.NotFound {
			return nil
		}
		if err != nil {
			return fmt.Errorf("asking for %s: %w", d.Digest, err)
		}
	}
	return label(ctx, contents, i.parts[0].Digest, keeps+c.snapshotter, "")
}

// find finds the topmost layer of an image.
func (c *Client) find(ctx context.Context, i *image) (Layers, bool, error) {
	all := chains(i.diffIDs)
	if len(all) == 0 {
		return Layers{}, true, nil
	}
	return c.stat(ctx, all[len(all)-1])
}

func (c *Client) stat(ctx context.Context, name string) (Layers, bool, error) {
	answer, err := snapshotsv1.NewSnapshotsClient(c.conn).Stat(ctx, &snapshotsv1.StatSnapshotRequest{Snapshotter: c.snapshotter, Key: name})
	if status.Code(err) == codes.NotFound {
		return Layers{}, false, nil
	}
	if err != nil {
		return Layers{}, false, fmt.Errorf("asking for the unpacked layer %s: %w", name, err)
	}
	return Layers{Snapshotter: c.snapshotter, Top: name, Created: answer.GetInfo().GetCreatedAt().AsTime()}, true, nil
}

// image finds an image by its configuration, under any of its names. containerd runs a container of
// it whatever architecture it claims to be for.
func (c *Client) image(ctx context.Context, of Image) (*image, error) {
	if c.snapshotter == "" {
		return nil, ErrForeign
	}
	client := imagesv1.NewImagesClient(c.conn)
	for _, name := range append([]string{of.ID}, of.Names...) {
		answer, err := client.Get(ctx, &imagesv1.GetImageRequest{Name: name})
		switch status.Code(err) {
		case codes.OK:
			return c.resolve(ctx, name, of.ID, answer.Image.GetTarget())
		case codes.NotFound:
		case codes.Unimplemented:
			return nil, ErrForeign
		default:
			return nil, fmt.Errorf("asking for the image %s: %w", name, err)
		}
	}
	return nil, fmt.Errorf("%w: containerd has no %s", ErrUnreadable, of.ID)
}

func (c *Client) resolve(ctx context.Context, name, id string, t *types.Descriptor) (*image, error) {
	var failure error // of containerd, not of the image
	r := &resolver{config: id, blob: func(d descriptor) ([]byte, error) {
		data, err := c.read(ctx, d)
		if code := status.Code(err); err != nil && code != codes.NotFound && code != codes.Unknown {
			failure = err
		}
		return data, err
	}}
	i, err := r.resolve([]descriptor{{MediaType: t.GetMediaType(), Digest: t.GetDigest(), Size: t.GetSize()}}, 0)
	if err != nil && failure != nil {
		return nil, failure
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnreadable, name, err)
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
	return label(ctx, contents, i.parts[0].Digest, keeps+c.snapshotter, parent)
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

// label gives a blob a label; an empty one is removed.
func label(ctx context.Context, client contentv1.ContentClient, digest, name, value string) error {
	info := &contentv1.Info{Digest: digest, Labels: map[string]string{name: value}}
	if _, err := client.Update(ctx, &contentv1.UpdateRequest{Info: info, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"labels." + name}}}); err != nil {
		return fmt.Errorf("labelling %s: %w", digest, err)
	}
	return nil
}
