package cri

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/status"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// healthTimeout bounds the question: a runtime at rest answers within milliseconds.
const healthTimeout = 5 * time.Second

// Serves asks the runtime at an endpoint for its version, as the kubelet does at its start:
// containerd accepts connections before it serves its API, and the kubelet ends on an error.
func Serves(ctx context.Context, endpoint string) error {
	return ask(ctx, endpoint, func(ctx context.Context, client runtimev1.RuntimeServiceClient) error {
		if _, err := client.Version(ctx, &runtimev1.VersionRequest{}); err != nil {
			return fmt.Errorf("the container runtime at %s does not serve its API (%s): systemctl restart containerd, if that lasts; journalctl -u containerd has the reason", endpoint, status.Convert(err).Message())
		}
		return nil
	})
}

// Health asks the runtime at an endpoint how it is: nil, or the reason why it can't start pods and
// the action needed.
func Health(ctx context.Context, endpoint string) error {
	return ask(ctx, endpoint, func(ctx context.Context, client runtimev1.RuntimeServiceClient) error {
		answer, err := client.Status(ctx, &runtimev1.StatusRequest{})
		if err != nil {
			return fmt.Errorf("the container runtime at %s does not answer (%s): running containers are not affected, and none can be started: systemctl restart containerd; journalctl -u containerd has the reason", endpoint, status.Convert(err).Message())
		}
		for _, c := range answer.GetStatus().GetConditions() {
			switch {
			case c.Status:
			case c.Type == runtimev1.RuntimeReady:
				return fmt.Errorf("the container runtime is not ready: %s %s; see `journalctl -u containerd`", c.Reason, c.Message)
			case c.Type == runtimev1.NetworkReady:
				return fmt.Errorf("the pod network is not ready: %s %s; see /etc/cni/net.d", c.Reason, c.Message)
			}
		}
		return nil
	})
}

func ask(ctx context.Context, endpoint string, question func(context.Context, runtimev1.RuntimeServiceClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	conn, err := Dial(endpoint)
	if err != nil {
		return err
	}
	defer conn.Close()
	return question(ctx, runtimev1.NewRuntimeServiceClient(conn))
}
