package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skerry-io/skerry/edge/internal/pods/cri"
)

// ErrUntold means that a container runtime does not report the image of its sandboxes.
var ErrUntold = errors.New("the container runtime does not report its sandbox image")

// SandboxImage asks a container runtime for the image of pods' sandboxes. containerd reports it in
// its configuration (`crictl info`): until 1.7 as sandboxImage, later among the pinned images.
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
		SandboxImage string            `json:"sandboxImage"`
		PinnedImages map[string]string `json:"pinnedImages"`
	}
	if err := json.Unmarshal([]byte(answer.Info["config"]), &told); err != nil {
		return "", ErrUntold
	}
	if told.SandboxImage != "" {
		return told.SandboxImage, nil
	}
	if name := told.PinnedImages["sandbox"]; name != "" {
		return name, nil
	}
	return "", ErrUntold
}

// present reports whether a runtime has an image.
func present(ctx context.Context, endpoint, name string) (bool, error) {
	conn, err := cri.Dial(endpoint)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	answer, err := runtimev1.NewImageServiceClient(conn).ImageStatus(ctx, &runtimev1.ImageStatusRequest{Image: &runtimev1.ImageSpec{Image: name}})
	if err != nil {
		return false, fmt.Errorf("asking for the sandbox image %s: %w", name, err)
	}
	return answer.Image != nil, nil
}
