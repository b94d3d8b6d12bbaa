package app

import (
	"context"
	"time"

	"github.com/skerry-io/skerry/edge/internal/pods/cri"
	"github.com/skerry-io/skerry/edge/internal/pods/podhealth"
)

// podsTimeout bounds the reading of pods for the status, which is from memory, and of the container
// runtime.
const podsTimeout = 2 * time.Second

// runtimeProblem checks the health of the container runtime; nil where there is no kubelet.
func (a *App) runtimeProblem(ctx context.Context) error {
	if a.edged == nil {
		return nil
	}
	return cri.Health(ctx, a.edged.Runtime())
}

// podsProblem is for the Node's condition.
func (a *App) podsProblem() func(ctx context.Context) (reason, message string) {
	var history podhealth.History
	return func(ctx context.Context) (reason, message string) {
		pods, _ := podhealth.Read(ctx, a.meta, a.node)
		return history.Problem(time.Now(), pods, a.runtimeProblem(ctx), a.meta.Linked())
	}
}
