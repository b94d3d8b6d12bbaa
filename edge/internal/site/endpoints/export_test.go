package endpoints

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// Learn is learn.
func (c *Correction) Learn(pods map[types.UID]PodStatus, services map[types.NamespacedName]Service) []object.Ref {
	return c.learn(pods, services)
}

// SyncOnce is the first Sync of a run.
func SyncOnce(ctx context.Context, c Config, pods []*corev1.Pod, now time.Time) error {
	return Syncs(c)(ctx, pods, now)
}

// Syncs are the Syncs of a run, one after another.
func Syncs(c Config) func(ctx context.Context, pods []*corev1.Pod, now time.Time) error {
	s := &syncer{Config: c}
	return func(ctx context.Context, pods []*corev1.Pod, now time.Time) error { return s.sync(ctx, pods, nil, now) }
}
