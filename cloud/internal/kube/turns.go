package kube

import "sync"

// Turns lets a bounded number of functions, which ask kube-apiserver for something, run at once, the others in the order in which they came. Those that wait have no
// goroutine: after a restart of cloudcore they are a dozen for each edge, and the runtime never gives back what a goroutine is described by. How many wait has no bound
// here; it is what asks that has one.
type Turns struct {
	mu   sync.Mutex
	free int
	line []func()
}

// NewTurns lets so many run at once.
func NewTurns(atOnce int) *Turns { return &Turns{free: atOnce} }

// Do has f run in a goroutine when it is its turn.
func (t *Turns) Do(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.line = append(t.line, f)
	if t.free > 0 {
		t.free--
		go t.run()
	}
}

// run runs what is in the line until nothing is.
func (t *Turns) run() {
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
