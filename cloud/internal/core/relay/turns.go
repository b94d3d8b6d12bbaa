package relay

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/rerun"
)

// heavyTurn is for how long one write holds up others. A longer one no longer blocks them: no
// device waits for a request of another that hangs at kube-apiserver.
const heavyTurn = time.Second

// turns bound how many writes are at kube-apiserver at once, of all nodes together.
type turns struct {
	queue  *kube.LimitedQueue // nodes in turns; each session has as many there as workers, and requests on the way
	atOnce int
	// rest bounds the pause after a write, in multiples of the time it took; with share nodes
	// waiting the pause is that time once, with fewer there is none. 0: never. So a flood of many
	// nodes leaves most of kube-apiserver's time to others, and a few that come back with a backlog
	// do not wait.
	rest, share int

	mu    sync.Mutex
	until time.Time // not before
}

func newTurns(atOnce, rest, share int) *turns {
	return &turns{queue: kube.NewLimitedQueue(atOnce, 1), atOnce: atOnce, rest: rest, share: share}
}

// wait waits until it is the node's turn, or ctx ends.
func (t *turns) wait(ctx context.Context, node types.NodeName) (leave func()) {
	granted, done := make(chan struct{}), make(chan struct{})
	waiting := t.queue.Do(string(node), func() {
		if t.pause(ctx) != nil {
			return
		}
		began := time.Now()
		close(granted)
		late := time.NewTimer(heavyTurn)
		defer late.Stop()
		select {
		case <-done:
			t.rested(time.Since(began))
		case <-late.C:
			t.rested(heavyTurn)
		}
	})
	select {
	case <-granted:
	case <-ctx.Done():
		waiting.Drop()
	}
	return func() { close(done) }
}

// pause waits until the rest after the last write is over.
func (t *turns) pause(ctx context.Context) error {
	t.mu.Lock()
	d := time.Until(t.until)
	t.mu.Unlock()
	if d <= 0 {
		return nil
	}
	return rerun.Pause(ctx, d)
}

// rested lets time pass after a write that took so long.
func (t *turns) rested(took time.Duration) {
	if t.share == 0 {
		return
	}
	rest := took * time.Duration(min(t.queue.Keys()/t.share, t.rest)) / time.Duration(t.atOnce)
	if rest == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); t.until.Before(now) {
		t.until = now
	}
	t.until = t.until.Add(rest)
}
