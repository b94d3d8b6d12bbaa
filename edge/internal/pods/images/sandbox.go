package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skerry-io/skerry/edge/internal/pods/cri"
	"github.com/skerry-io/skerry/edge/internal/pods/images/containerd"
)

// ErrUntold means that a container runtime does not report the image of its sandboxes.
var ErrUntold = errors.New("the container runtime does not report its sandbox image")

// SandboxImage asks a container runtime for the image of pods' sandboxes. containerd reports it in
// its configuration (`crictl info`) until 1.7; later only its program does (`containerd config
// dump`), which is run as the process was that serves the endpoint.
func SandboxImage(ctx context.Context, endpoint string) (string, error) {
	conn, err := cri.Dial(endpoint)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	answer, err := runtimev1.NewRuntimeServiceClient(conn).Status(ctx, &runtimev1.StatusRequest{Verbose: true})
	if err != nil {
		return "", fmt.Errorf("asking the container runtime for its configuration: %w", err)
	}
	var told struct {
		SandboxImage string `json:"sandboxImage"`
	}
	if err := json.Unmarshal([]byte(answer.Info["config"]), &told); err == nil && told.SandboxImage != "" {
		return told.SandboxImage, nil
	}
	pid, err := cri.Server(ctx, endpoint)
	if err != nil {
		return "", err
	}
	name, err := containerd.SandboxImage(ctx, pid)
	if err == nil && name == "" {
		err = ErrUntold
	}
	return name, err
}
