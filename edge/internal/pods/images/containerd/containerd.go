// Package containerd asks containerd by its own API, or its program, for what CRI has no call for:
// it imports a small image from an OCI layout in a tar, without a registry, unpacks an image's
// layers or removes them, apart from the start of a container, and finds the image of sandboxes.
//
// It has no state. It refuses archives with an image that is larger than MaxBlob, without one for
// this architecture, or whose blobs don't have their digests. Partial imports are removed by
// containerd's garbage collection. Its functions may be called from any goroutine.
package containerd

import (
	"context"
	"fmt"
	"strings"
	"time"

	introspectionv1 "github.com/containerd/containerd/api/services/introspection/v1"
	leasesv1 "github.com/containerd/containerd/api/services/leases/v1"
	"github.com/containerd/containerd/api/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	// namespace is containerd's for Kubernetes.
	namespace = "k8s.io"
	// leaseTime is how long containerd keeps content and layers without an image.
	leaseTime = time.Hour
	// expires is the label of leases that containerd ends by itself, which clients give their
	// pulls.
	expires = "containerd.io/gc.expire"
	// snapshotters is the type of snapshotters among plugins. With a name it is their directory's.
	snapshotters = "io.containerd.snapshotter.v1"
)

// Client asks one containerd.
type Client struct {
	conn        grpc.ClientConnInterface
	snapshotter string // "": not known, its layers are not those of containerd
}

// New returns a Client. conn is connected to containerd. Layers are those of the snapshotter with
// its files at a path, which CRI reports for images (ImageFsInfo); with another path than
// containerd's own, containerd is asked whose it is.
func New(ctx context.Context, conn grpc.ClientConnInterface, path string) (*Client, error) {
	if _, name, ok := strings.Cut(path, snapshotters+"."); ok {
		name, _, _ = strings.Cut(name, "/")
		return &Client{conn, name}, nil
	}
	answer, err := introspectionv1.NewIntrospectionClient(conn).Plugins(ctx, &introspectionv1.PluginsRequest{Filters: []string{"type==" + snapshotters}})
	if err != nil && status.Code(err) != codes.Unimplemented {
		return nil, fmt.Errorf("asking containerd for its snapshotters: %w", err)
	}
	for _, p := range answer.GetPlugins() {
		if path != "" && p.Exports["root"] == path {
			return &Client{conn, p.ID}, nil
		}
	}
	return &Client{conn, ""}, nil
}

// within is a context for requests.
func within(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace)
}

// lease is a context in which everything that is made stays until end.
func (c *Client) lease(ctx context.Context) (leased context.Context, end func(), err error) {
	ctx = within(ctx)
	client := leasesv1.NewLeasesClient(c.conn)
	made, err := client.Create(ctx, &leasesv1.CreateRequest{Labels: map[string]string{
		expires: time.Now().Add(leaseTime).Format(time.RFC3339),
	}, ID: fmt.Sprintf("skerry-%d", time.Now().UnixNano())})
	if err != nil {
		return nil, nil, fmt.Errorf("creating a containerd lease: %w", err)
	}
	return metadata.AppendToOutgoingContext(ctx, "containerd-lease", made.Lease.ID), func() { // else it runs out
		_, _ = client.Delete(context.WithoutCancel(ctx), &leasesv1.DeleteRequest{ID: made.Lease.ID})
	}, nil
}

func target(d descriptor) *types.Descriptor {
	return &types.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}
}

// collect has containerd's garbage collection run, and waits for it.
func (c *Client) collect(ctx context.Context) error {
	client := leasesv1.NewLeasesClient(c.conn)
	made, err := client.Create(ctx, &leasesv1.CreateRequest{ID: fmt.Sprintf("skerry-collect-%d", time.Now().UnixNano()), Labels: map[string]string{
		expires: time.Now().Add(leaseTime).Format(time.RFC3339),
	}})
	if err == nil {
		_, err = client.Delete(ctx, &leasesv1.DeleteRequest{ID: made.Lease.ID, Sync: true})
	}
	if err != nil {
		return fmt.Errorf("waiting for containerd's garbage collection: %w", err)
	}
	return nil
}

// DeleteExpiring deletes containerd's leases of pulls and imports that have not ended, except those
// that were created from since to now, and with them what no image or container uses: layers that
// are unpacked in part, or were not written to the disk. Another runtime has none.
func (c *Client) DeleteExpiring(ctx context.Context, since time.Time) error {
	ctx = within(ctx)
	client := leasesv1.NewLeasesClient(c.conn)
	all, err := client.List(ctx, &leasesv1.ListRequest{})
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listing containerd's leases: %w", err)
	}
	now := time.Now()
	for _, l := range all.Leases {
		created := l.GetCreatedAt().AsTime()
		if _, ok := l.Labels[expires]; !ok || !created.Before(since) && !created.After(now) {
			continue
		}
		if _, err := client.Delete(ctx, &leasesv1.DeleteRequest{ID: l.ID, Sync: true}); err != nil && status.Code(err) != codes.NotFound {
			return fmt.Errorf("deleting a lease of containerd: %w", err)
		}
	}
	return nil
}
