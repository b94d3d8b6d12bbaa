package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"

	contentv1 "github.com/containerd/containerd/api/services/content/v1"
	imagesv1 "github.com/containerd/containerd/api/services/images/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Import makes the archive's image for this architecture the image of that name, and returns its ID
// in CRI. Its layers are unpacked, and written has returned, before there is an image: a container
// of it finds its files. With a snapshotter that is not known its layers are left to containerd.
func (c *Client) Import(ctx context.Context, file, name string, written func() error) (id string, err error) {
	i, all, err := read(file, runtime.GOARCH)
	if err != nil {
		return "", err
	}
	ctx, end, err := c.lease(ctx)
	if err != nil {
		return "", err
	}
	defer end()
	contents := contentv1.NewContentClient(c.conn)
	labels := map[string]string{}
	for n, d := range i.parts {
		labels[fmt.Sprintf("containerd.io/gc.ref.content.%d", n)] = d.Digest
		if err := write(ctx, contents, d, all[d.Digest], nil); err != nil {
			return "", err
		}
	}
	if err := write(ctx, contents, i.manifest, all[i.manifest.Digest], labels); err != nil {
		return "", err
	}
	if c.snapshotter != "" {
		if err := c.unpack(ctx, i); err != nil {
			return "", err
		}
	}
	if err := written(); err != nil {
		return "", err
	}
	record := &imagesv1.Image{Name: name, Target: target(i.manifest), Labels: map[string]string{"io.cri-containerd.pinned": "pinned"}}
	client := imagesv1.NewImagesClient(c.conn)
	_, err = client.Create(ctx, &imagesv1.CreateImageRequest{Image: record})
	if status.Code(err) == codes.AlreadyExists { // unknown to CRI: its blobs were lost
		_, err = client.Update(ctx, &imagesv1.UpdateImageRequest{Image: record})
	}
	if err != nil {
		return "", fmt.Errorf("making the image: %w", err)
	}
	return i.parts[0].Digest, nil
}

// write gives containerd a blob that it may have.
func write(ctx context.Context, client contentv1.ContentClient, d descriptor, data []byte, labels map[string]string) error {
	err := commit(ctx, client, d, data, labels)
	if err != nil && status.Code(err) != codes.AlreadyExists {
		return fmt.Errorf("writing %s: %w", d.Digest, err)
	}
	return nil
}

func commit(ctx context.Context, client contentv1.ContentClient, d descriptor, data []byte, labels map[string]string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream
	stream, err := client.Write(ctx)
	if err != nil {
		return err
	}
	request := &contentv1.WriteContentRequest{
		Action: contentv1.WriteAction_COMMIT, Ref: "skerry-" + d.Digest, Total: d.Size, Expected: d.Digest, Data: data, Labels: labels,
	}
	if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) { // Recv returns the reason
		return err
	}
	_, err = stream.Recv()
	return err
}
