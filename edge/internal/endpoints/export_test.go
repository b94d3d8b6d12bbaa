package endpoints

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/edge/internal/object"
)

// Learn is learn.
func (c *Correction) Learn(pods map[types.UID]Word, services map[types.NamespacedName]Service) []object.Ref {
	return c.learn(pods, services)
}

// SyncOnce is the first Sync of a run.
func SyncOnce(ctx context.Context, c Config, pods []*corev1.Pod, now time.Time) error {
	return (&syncer{Config: c}).sync(ctx, pods, nil, now)
}
