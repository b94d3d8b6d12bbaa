package relay

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/rerun"
)

// heavyTurn is for how long one write holds up others. What takes longer goes on beside them: no
// device waits for what another made kube-apiserver wait for.
const heavyTurn = time.Second

// turns bound how many writes are at kube-apiserver at once, of all nodes together.
type turns struct {
	queue  *kube.LimitedQueue // nodes in turns; each session has as many there as workers, and requests on the way
	atOnce int
	// rest is how many times as long as a write took nothing follows it, at most; share is for
	// how many nodes that wait it is once as long, and below that there is none. 0: never. So what
	// many nodes flood with leaves most of kube-apiserver's time to others, and a few that come
	// back with much do not wait.
	rest, share int

	mu    sync.Mutex
	until time.Time // nothing begins before
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

// pause waits for the end of what was made before.
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
