// Package archive imports a small image from an OCI layout in a tar into containerd, by
// containerd's own API: CRI has no way to bring an image without a registry.
//
// It has no state. It refuses archives with an image that is larger than MaxBlob, without one for
// this architecture, or whose blobs don't have their digests. Partial imports are removed by
// containerd's garbage collection. Its functions may be called from any goroutine.
package archive

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	contentv1 "github.com/containerd/containerd/api/services/content/v1"
	imagesv1 "github.com/containerd/containerd/api/services/images/v1"
	leasesv1 "github.com/containerd/containerd/api/services/leases/v1"
	"github.com/containerd/containerd/api/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	// MaxBlob bounds a blob, in bytes; a larger archive is refused. The image of sandboxes has 1
	// MiB.
	MaxBlob = 8 << 20
	// namespace is containerd's for Kubernetes.
	namespace = "k8s.io"
	// leaseTime is how long containerd keeps content without an image.
	leaseTime = time.Hour
	// blobs is where an OCI layout has its blobs.
	blobs = "blobs/sha256/"
)

// descriptor refers to a blob (OCI image specification, descriptor.md).
type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
	Platform  *struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
	} `json:"platform,omitempty"`
}

// image is the image of one architecture.
type image struct {
	manifest descriptor
	parts    []descriptor      // its configuration, then its layers
	content  map[string][]byte // by digest; of manifest and parts
}

// Import makes the archive's image for this architecture the image of that name. conn is connected
// to containerd.
func Import(ctx context.Context, conn grpc.ClientConnInterface, file, name string) error {
	i, err := read(file, runtime.GOARCH)
	if err != nil {
		return err
	}
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace)
	leases := leasesv1.NewLeasesClient(conn)
	made, err := leases.Create(ctx, &leasesv1.CreateRequest{Labels: map[string]string{
		expires: time.Now().Add(leaseTime).Format(time.RFC3339),
	}, ID: fmt.Sprintf("skerry-%d", time.Now().UnixNano())})
	if err != nil {
		return fmt.Errorf("creating a containerd lease for the import: %w", err)
	}
	defer func() { // else it runs out
		_, _ = leases.Delete(context.WithoutCancel(ctx), &leasesv1.DeleteRequest{ID: made.Lease.ID})
	}()
	leased := metadata.AppendToOutgoingContext(ctx, "containerd-lease", made.Lease.ID)
	contents := contentv1.NewContentClient(conn)
	labels := map[string]string{}
	for n, d := range i.parts {
		labels[fmt.Sprintf("containerd.io/gc.ref.content.%d", n)] = d.Digest
		if err := write(leased, contents, d, i.content[d.Digest], nil); err != nil {
			return err
		}
	}
	if err := write(leased, contents, i.manifest, i.content[i.manifest.Digest], labels); err != nil {
		return err
	}
	record := &imagesv1.Image{Name: name, Target: &types.Descriptor{
		MediaType: i.manifest.MediaType, Digest: i.manifest.Digest, Size: i.manifest.Size,
	}, Labels: map[string]string{"io.cri-containerd.pinned": "pinned"}}
	client := imagesv1.NewImagesClient(conn)
	_, err = client.Create(leased, &imagesv1.CreateImageRequest{Image: record})
	if status.Code(err) == codes.AlreadyExists { // unknown to CRI: its blobs were lost
		_, err = client.Update(leased, &imagesv1.UpdateImageRequest{Image: record})
	}
	if err != nil {
		return fmt.Errorf("making the image: %w", err)
	}
	return nil
}

// expires is the label of leases that containerd ends by itself, which clients give their pulls.
const expires = "containerd.io/gc.expire"

// DeleteExpiring deletes containerd's leases of pulls, and with them what no image or container
// uses: layers of pulls that have not ended. conn is connected to containerd. It is for a time
// without pulls; another runtime has none.
func DeleteExpiring(ctx context.Context, conn grpc.ClientConnInterface) error {
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace)
	client := leasesv1.NewLeasesClient(conn)
	all, err := client.List(ctx, &leasesv1.ListRequest{})
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listing containerd's leases: %w", err)
	}
	for _, l := range all.Leases {
		if _, ok := l.Labels[expires]; !ok {
			continue
		}
		if _, err := client.Delete(ctx, &leasesv1.DeleteRequest{ID: l.ID, Sync: true}); err != nil && status.Code(err) != codes.NotFound {
			return fmt.Errorf("deleting a lease of containerd: %w", err)
		}
	}
	return nil
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

// read takes the image of one architecture out of an archive.
func read(file, arch string) (*image, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, index, err := unpack(f)
	if err != nil {
		return nil, err
	}
	var top struct {
		Manifests []descriptor `json:"manifests"`
	}
	if err := json.Unmarshal(index, &top); err != nil {
		return nil, fmt.Errorf("reading the index: %w", err)
	}
	return resolve(all, top.Manifests, arch, 0)
}

// maxBlobs and maxDepth bound an archive; one with more is refused.
const (
	maxBlobs = 64
	maxDepth = 4
)

// unpack returns an archive's blobs by their digests, which are right, and its index.json.
func unpack(from io.Reader) (all map[string][]byte, index []byte, err error) {
	all = map[string][]byte{}
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, nil, fmt.Errorf("reading the archive: %w", err)
		}
		name := strings.TrimPrefix(h.Name, "./")
		digest, blob := strings.CutPrefix(name, blobs)
		if h.Typeflag != tar.TypeReg || !blob && name != "index.json" {
			continue
		}
		if h.Size > MaxBlob || len(all) > maxBlobs {
			return nil, nil, fmt.Errorf("%s: the archive is too large", name)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return nil, nil, fmt.Errorf("reading %s: %w", name, err)
		}
		if !blob {
			index = data
			continue
		}
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != digest {
			return nil, nil, fmt.Errorf("%s does not have its digest", name)
		}
		all["sha256:"+digest] = data
	}
	if index == nil {
		return nil, nil, errors.New("it is no OCI layout: there is no index.json")
	}
	return all, index, nil
}

// resolve follows descriptors, of which some may be indexes over architectures, to the image.
func resolve(all map[string][]byte, among []descriptor, arch string, depth int) (*image, error) {
	for _, d := range among {
		if p := d.Platform; p != nil && (p.Architecture != arch || p.OS != "linux") || depth > maxDepth {
			continue
		}
		var content struct {
			Manifests []descriptor `json:"manifests"`
			Config    *descriptor  `json:"config"`
			Layers    []descriptor `json:"layers"`
		}
		if err := json.Unmarshal(all[d.Digest], &content); err != nil {
			return nil, fmt.Errorf("reading %s: %w", d.Digest, err)
		}
		if content.Config == nil {
			if i, err := resolve(all, content.Manifests, arch, depth+1); err == nil {
				return i, nil
			}
			continue
		}
		if !built(all[content.Config.Digest], arch) {
			continue
		}
		i := &image{manifest: d, parts: append([]descriptor{*content.Config}, content.Layers...), content: map[string][]byte{}}
		for _, part := range append(slices.Clone(i.parts), d) {
			data, ok := all[part.Digest]
			if !ok {
				return nil, fmt.Errorf("the archive lacks %s", part.Digest)
			}
			i.content[part.Digest] = data
		}
		return i, nil
	}
	return nil, fmt.Errorf("the archive has no image for linux/%s", arch)
}

// built reports whether a configuration is of an image for an architecture.
func built(config []byte, arch string) bool {
	var c struct {
		Architecture string `json:"architecture"`
	}
	return json.Unmarshal(config, &c) == nil && c.Architecture == arch
}
