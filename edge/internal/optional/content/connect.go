//go:build !kubernetes1.36

package content

import (
	"context"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	criclient "k8s.io/cri-client/pkg"
)

func connect(ctx context.Context, endpoint string, timeout time.Duration) (internalapi.ImageManagerService, error) {
	return criclient.NewRemoteImageServiceBuilder().WithEndpoint(endpoint).WithConnectionTimeout(timeout).Build(ctx)
}
