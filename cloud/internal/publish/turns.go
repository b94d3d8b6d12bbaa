package publish

import "sync"

// turns lets a bounded number of functions run at once, the others in the order in which they came. Those that wait have no goroutine: after a restart of cloudcore
// they are ten for each edge, and the runtime never gives back what a goroutine is described by. How many wait has no bound here: each is an interest, and those are
// bounded.
type turns struct {
	mu   sync.Mutex
	free int
	line []func()
}

// do has f run in a goroutine when it is its turn.
func (t *turns) do(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.line = append(t.line, f)
	if t.free > 0 {
		t.free--
		go t.run()
	}
}

// run runs what is in the line until nothing is.
func (t *turns) run() {
	for {
		t.mu.Lock()
		if len(t.line) == 0 {
			t.line = nil
			t.free++
			t.mu.Unlock()
			return
		}
		f := t.line[0]
		t.line[0] = nil
		t.line = t.line[1:]
		t.mu.Unlock()
		f()
	}
}
