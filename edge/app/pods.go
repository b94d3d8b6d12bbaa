package app

import (
	"context"
	"time"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/pods/podhealth"
)

// podsTimeout bounds the reading of pods for the status, which is from memory, and of the container
// runtime.
const podsTimeout = 2 * time.Second

// podsProblem is for the Node's condition.
func podsProblem(node string, meta *metamanager.Manager, k *kubelet) func(ctx context.Context) (reason, message string) {
	var history podhealth.History
	return func(ctx context.Context) (reason, message string) {
		pods, _ := podhealth.Read(ctx, meta, node, time.Now())
		return history.Problem(time.Now(), pods, k.runtimeProblem(ctx), meta.Linked())
	}
}
