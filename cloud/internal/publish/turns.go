package publish

import (
	"context"
	"slices"
	"sync"
)

// turns lets a bounded number of callers go at once, the others in the order in which they entered. Unlike a semaphore's, that order is not the one in which their
// goroutines happen to run. How many wait has no bound here: each is an interest, and those are bounded.
type turns struct {
	mu   sync.Mutex
	free int
	line []chan struct{} // of those who wait; each is closed when it is its turn
}

// enter takes a place in the line. Who has one must call await.
func (t *turns) enter() (turn <-chan struct{}) {
	c := make(chan struct{})
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.free > 0 {
		t.free--
		close(c)
	} else {
		t.line = append(t.line, c)
	}
	return c
}

// await waits for a turn, which leave ends. Where ctx ends first it gives the place up and returns false.
func (t *turns) await(ctx context.Context, turn <-chan struct{}) bool {
	select {
	case <-turn:
		return true
	case <-ctx.Done():
	}
	t.mu.Lock()
	i := slices.IndexFunc(t.line, func(c chan struct{}) bool { return c == turn })
	if i >= 0 {
		t.line = slices.Delete(t.line, i, i+1)
	}
	t.mu.Unlock()
	if i < 0 { // it came at the same moment
		t.leave()
	}
	return false
}

// leave lets the next go.
func (t *turns) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.line) == 0 {
		t.free++
		return
	}
	close(t.line[0])
	t.line[0] = nil
	t.line = t.line[1:]
}
