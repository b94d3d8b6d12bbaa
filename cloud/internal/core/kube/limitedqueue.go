package kube

import (
	"context"
	"slices"
	"sync"

	"github.com/skerry-io/skerry/common/recovery"
)

// LimitedQueue runs a bounded number of functions with requests at kube-apiserver at once; the
// others wait. Keys, those of nodes, take turns in the order in which they came, so the functions
// of one node hold another up by one turn at most. A waiting function has no goroutine: after a
// restart of cloudcore there are a dozen for each edge, and the runtime never frees a goroutine's
// descriptor. The length is not bounded here; each user has a bound.
type LimitedQueue struct {
	mu   sync.Mutex
	free int
	each int
	line []*turn // keys that have something waiting; the first is served
	keys map[string]*turn
}

// turn holds the functions that wait under one key.
type turn struct {
	key     string
	waiting []*Waiting
	taken   int // since it came to the head of the line
}

// Waiting is a function in a LimitedQueue.
type Waiting struct {
	queue *LimitedQueue
	turn  *turn
	run   func() // nil once it was taken or dropped
}

// NewLimitedQueue runs so many at once, and so many of one key before another key that waits has
// its turn.
func NewLimitedQueue(atOnce, each int) *LimitedQueue {
	return &LimitedQueue{free: atOnce, each: each, keys: map[string]*turn{}}
}

// Do runs f in a goroutine when its turn has come.
func (q *LimitedQueue) Do(key string, f func()) *Waiting {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.keys[key]
	if t == nil {
		t = &turn{key: key}
		q.keys[key] = t
		q.line = append(q.line, t)
	}
	w := &Waiting{queue: q, turn: t, run: f}
	t.waiting = append(t.waiting, w)
	if q.free > 0 {
		q.free--
		go q.work()
	}
	return w
}

// Drop takes the function out of the queue where it has not begun. It may be called more than once.
func (w *Waiting) Drop() {
	q := w.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.run == nil {
		return
	}
	w.run = nil
	if i := slices.Index(w.turn.waiting, w); i >= 0 {
		w.turn.waiting = slices.Delete(w.turn.waiting, i, i+1)
	}
	if len(w.turn.waiting) == 0 {
		q.remove(w.turn)
	}
}

// Len is how many functions wait.
func (q *LimitedQueue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, t := range q.line {
		n += len(t.waiting)
	}
	return n
}

// Keys is under how many keys functions wait.
func (q *LimitedQueue) Keys() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.keys)
}

// work runs waiting functions until the queue is empty.
func (q *LimitedQueue) work() {
	for {
		f := q.take()
		if f == nil {
			return
		}
		recovery.Call(context.Background(), "kube.LimitedQueue", f)
	}
}

// take returns the next function, or nil and gives the slot back.
func (q *LimitedQueue) take() func() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.line) == 0 {
		q.line = nil
		q.free++
		return nil
	}
	t := q.line[0]
	if t.taken >= q.each && len(q.line) > 1 {
		t.taken = 0
		q.line = append(q.line[1:], t)
		t = q.line[0]
	}
	w := t.waiting[0]
	t.waiting[0] = nil
	t.waiting = t.waiting[1:]
	t.taken++
	if len(t.waiting) == 0 {
		q.remove(t)
	}
	f := w.run
	w.run = nil
	return f
}

// remove takes a key out of the line. mu is held.
func (q *LimitedQueue) remove(t *turn) {
	delete(q.keys, t.key)
	switch i := slices.Index(q.line, t); {
	case i == 0:
		q.line[0] = nil
		q.line = q.line[1:]
	case i > 0:
		q.line = slices.Delete(q.line, i, i+1)
	}
}
