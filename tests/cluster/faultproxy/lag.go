package faultproxy

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"
)

// A Lag is the delay of the events of a watch, as from an API server whose watch cache is behind.
// The zero Lag is no delay.
type Lag struct {
	// By is how old an event is when it arrives.
	By time.Duration
	// Hold keeps events back until the Lag is replaced.
	Hold bool
}

// Watch reports whether a request opens a watch.
func Watch(r *http.Request) bool {
	w := r.URL.Query().Get("watch")
	return r.Method == http.MethodGet && (w == "true" || w == "1")
}

// late delays next's answer by lag; lag also returns a channel that is closed when its answer may
// be another.
func late(w http.ResponseWriter, r *http.Request, next http.Handler, lag func() (Lag, <-chan struct{})) {
	// Not r's own context: when the server ends the watch, waiting events are still delivered.
	q := &queue{w: w, more: make(chan struct{}, 1), room: make(chan struct{}, 1), gone: r.Context().Done()}
	delivered := make(chan struct{})
	go func() {
		defer close(delivered)
		q.deliver(r.Context(), lag)
	}()
	// Also when the proxy panics, as it does when the server breaks off.
	defer func() {
		q.end()
		<-delivered
	}()
	next.ServeHTTP(q, r)
}

// mostWaiting bounds the bytes of a watch that wait. At the bound the server is read no further,
// and sees a slow client.
const mostWaiting = 64 << 20

var errGone = errors.New("the client is gone")

// queue is a ResponseWriter whose body arrives late.
type queue struct {
	gone <-chan struct{}
	more chan struct{} // one slot: there is something new
	room chan struct{} // one slot: something was delivered

	wMu sync.Mutex // guards w: its headers are flushed by the proxy, its body is written by deliver
	w   http.ResponseWriter

	mu     sync.Mutex
	chunks []chunk
	bytes  int
	ended  bool
}

type chunk struct {
	at   time.Time
	data []byte
}

func (q *queue) Header() http.Header { return q.w.Header() }

func (q *queue) WriteHeader(code int) {
	q.wMu.Lock()
	defer q.wMu.Unlock()
	q.w.WriteHeader(code)
}

// FlushError sends the header; the body is flushed by deliver.
func (q *queue) FlushError() error {
	q.wMu.Lock()
	defer q.wMu.Unlock()
	return http.NewResponseController(q.w).Flush()
}

func (q *queue) Write(p []byte) (int, error) {
	for {
		q.mu.Lock()
		if q.bytes < mostWaiting {
			q.chunks = append(q.chunks, chunk{time.Now(), slices.Clone(p)})
			q.bytes += len(p)
			q.mu.Unlock()
			poke(q.more)
			return len(p), nil
		}
		q.mu.Unlock()
		select {
		case <-q.room:
		case <-q.gone:
			return 0, errGone
		}
	}
}

func (q *queue) end() {
	q.mu.Lock()
	q.ended = true
	q.mu.Unlock()
	poke(q.more)
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// deliver writes each chunk when it is due, until the last one or until the client is gone.
func (q *queue) deliver(ctx context.Context, lag func() (Lag, <-chan struct{})) {
	for {
		q.mu.Lock()
		empty, ended := len(q.chunks) == 0, q.ended
		var first chunk
		if !empty {
			first = q.chunks[0]
		}
		q.mu.Unlock()
		switch {
		case empty && ended:
			return
		case empty:
			select {
			case <-q.more:
			case <-ctx.Done():
				return
			}
			continue
		}
		if !await(ctx, first.at, lag) || !q.write(first.data) {
			return
		}
		q.mu.Lock()
		q.chunks[0] = chunk{}
		q.chunks, q.bytes = q.chunks[1:], q.bytes-len(first.data)
		q.mu.Unlock()
		poke(q.room)
	}
}

// await waits until an event that came at that time is due; false means that the client is gone.
func await(ctx context.Context, at time.Time, lag func() (Lag, <-chan struct{})) bool {
	for {
		l, changed := lag()
		due := time.Until(at.Add(l.By))
		if !l.Hold && due <= 0 {
			return ctx.Err() == nil
		}
		var timer <-chan time.Time
		if !l.Hold {
			timer = time.After(due)
		}
		select {
		case <-timer:
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

func (q *queue) write(p []byte) bool {
	q.wMu.Lock()
	defer q.wMu.Unlock()
	if _, err := q.w.Write(p); err != nil {
		return false
	}
	return http.NewResponseController(q.w).Flush() == nil
}
