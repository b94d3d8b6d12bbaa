package relay

import (
	"context"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

// Client makes requests at kube-apiserver.
type Client interface {
	Do(ctx context.Context, as kube.Identity, r kube.Request) (*kube.Response, error)
}
