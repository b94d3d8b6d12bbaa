package publish_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/publish"
)

// slow is an Access that takes its time and has few seats, as kube-apiserver.
type slow struct {
	*world
	mu         sync.Mutex
	busy, most int
}

func (s *slow) Allowed(ctx context.Context, node types.NodeName, at kube.Attributes) (kube.Decision, error) {
	return s.Review(ctx, node, at)
}

func (s *slow) Review(ctx context.Context, node types.NodeName, at kube.Attributes) (kube.Decision, error) {
	s.mu.Lock()
	s.busy++
	s.most = max(s.most, s.busy)
	s.mu.Unlock()
	time.Sleep(10 * time.Millisecond) // of the bubble
	s.mu.Lock()
	s.busy--
	s.mu.Unlock()
	return s.world.Review(ctx, node, at)
}

// Many edges that come at one moment are reviewed a few at a time, and the first are served before
// the last have been reviewed.
func TestManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newWorld()
		c.synced(t, kube.Pods)
		c.synced(t, services, service("web"))
		access := &slow{world: c}
		p := publish.New(c, c, access, publish.DefaultQuotas())
		const sessions = 500
		edges := make([]*edge, sessions)
		for i := range edges {
			e := newEdge(t)
			e.Name, e.settle = types.NodeName(fmt.Sprintf("edge%d", i)), func() {}
			edges[i] = e
		}
		for _, e := range edges {
			e.connect(p, podsOf(1, string(e.Name)), allServices(2))
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		served := 0
		for _, e := range edges {
			if len(e.syncedIDs()) == 2 {
				served++
			}
		}
		if served == 0 || served == sessions {
			t.Errorf("after 0.2 s %d of %d sessions are served", served, sessions)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, e := range edges {
			want(t, "synced", e.syncedIDs(), map[uint64]bool{1: true, 2: true})
		}
		for _, e := range edges {
			e.disconnect()
		}
		if access.most > 32 {
			t.Errorf("%d reviews at once", access.most)
		}
	})
}
