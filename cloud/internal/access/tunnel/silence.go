package tunnel

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/skerry-io/skerry/cloud/internal/access/clienthello"
	"github.com/skerry-io/skerry/common/tunnel"
)

const (
	// lookAfter is how long written data may be without an answer before the edge is asked
	// for a sign of life; signTimeout is for that. Together they end a request on a kept connection
	// within AnswerTimeout.
	lookAfter   = 300 * time.Millisecond
	signTimeout = 1200 * time.Millisecond
	// silentFor is how long the lack of a sign of life answers for new connections too. After that
	// they try again themselves.
	silentFor = 2 * time.Second
)

// watched is a stream whose client may have kept it for later requests. A link that fell silent is
// given up only after its idle timeout; until then, such a request would wait although a new
// connection would fail at once, as the node does not answer. So where no message has come from
// the edge since the last write, it is asked for a sign of life, and without one the connection
// ends. Only connections of clients that pool them are treated so: a terminal or a forwarded port
// outlives a network that stalls for some seconds.
type watched struct {
	*tunnel.Stream
	session *session

	mu     sync.Mutex
	first  []byte // the client's data so far, until the hello is whole
	known  bool   // the hello has been read, or is missing
	pools  bool
	last   time.Time   // when something was written last
	timer  *time.Timer // nil while no write waits for an answer
	closed bool
}

func (s *session) watch(stream *tunnel.Stream) net.Conn { return &watched{Stream: stream, session: s} }

// Write sends data to the kubelet.
func (w *watched) Write(b []byte) (int, error) {
	w.observe(b)
	return w.Stream.Write(b)
}

// Close ends the stream.
func (w *watched) Close() error {
	w.mu.Lock()
	w.closed = true
	if w.timer != nil {
		w.timer.Stop()
	}
	w.mu.Unlock()
	return w.Stream.Close()
}

func (w *watched) observe(b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.known {
		w.learn(b)
		return
	}
	if w.last = time.Now(); w.pools && !w.closed && w.timer == nil {
		w.timer = time.AfterFunc(lookAfter, w.look)
	}
}

// learn reads the hello, which may come in pieces. w.mu is held.
func (w *watched) learn(b []byte) {
	w.first = append(w.first, b[:min(len(b), clienthello.Max-len(w.first))]...)
	h, _, err := clienthello.Read(bytes.NewReader(w.first))
	if err != nil && len(w.first) < clienthello.Max && clienthello.Incomplete(w.first) {
		return
	}
	w.first, w.known, w.pools = nil, true, err == nil && h.OffersHTTP2()
}

// look ends the stream if the edge has been silent since the last write.
func (w *watched) look() {
	for {
		w.mu.Lock()
		last := w.last
		if wait := lookAfter - time.Since(last); wait > 0 && !w.closed { // there was a write since
			w.timer = time.AfterFunc(wait, w.look)
			w.mu.Unlock()
			return
		}
		if w.closed || w.session.heardSince(last) {
			w.timer = nil
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), signTimeout)
		err := w.session.mux.Probe(ctx)
		cancel()
		if !w.session.heardSince(last) {
			if errors.Is(err, context.DeadlineExceeded) {
				w.session.silent.Store(new(time.Now()))
				_ = w.Stream.Close() // both directions of Splice end by that
			}
			return // or the link has ended, or takes no probe: no more checks
		}
	}
}

// heardSince reports whether a message has come; true where that is not known.
func (s *session) heardSince(at time.Time) bool {
	heard, ok := s.Session.(interface{ LastHeard() time.Time })
	return !ok || heard.LastHeard().After(at)
}
