//go:build !kubernetes1.36

package shutdown

import (
	"context"
	"time"

	criclient "k8s.io/cri-client/pkg"
)

func connect(ctx context.Context, endpoint string, timeout time.Duration) (Runtime, error) {
	return criclient.NewRemoteRuntimeServiceBuilder().WithEndpoint(endpoint).WithConnectionTimeout(timeout).Build(ctx)
}
