package content

import (
	"context"
	"fmt"
	"time"
)

// connectTimeout bounds the way to a container runtime, which is a socket of this device.
const connectTimeout = 10 * time.Second

// Runtime opens the images of the container runtime at an endpoint, as the kubelet has it:
// unix:///run/containerd/containerd.sock.
func Runtime(ctx context.Context, endpoint string) (Images, error) {
	service, err := connect(ctx, endpoint, connectTimeout)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", endpoint, err)
	}
	return service, nil
}
