package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// Stream is one connection within a link.
type Stream struct {
	// Set when it is made, never changed.
	mux  *Mux
	id   uint64
	most int // that window becomes

	writing sync.Mutex // one Write at a time; taken before mu

	mu       sync.Mutex
	changed  chan struct{} // closed, and cleared, at each change that a goroutine waits for
	accepted bool
	reason   string // sent to the peer with the close

	// Received data.
	buffer  [][]byte      // received and not read yet
	window  int           // bound of the bytes in flight and unread
	room    int           // how much more the peer may send
	read    int           // read and not granted again yet
	granted int           // to be granted to the peer next
	readErr error         // after the buffer; io.EOF after the peer's CloseWrite
	asked   time.Time     // when the peer was asked for, or allowed, the first
	round   time.Duration // until it answered: a round trip, and the time of its own dial; 0: it has not
	since   time.Time     // of the last measurement of the rate
	moved   int           // read since then
	before  float64       // the rate, in bytes a nanosecond, before the window grew; 0: it did not, at the last look
	again   time.Time     // it does not grow before

	// Data to send.
	credit   int   // how much may be sent
	writeErr error // of every later write
	fin      bool
	cancel   context.CancelFunc // of the Send that is under way

	readDeadline, writeDeadline time.Time
}

var (
	_ net.Conn = (*Stream)(nil)

	errShut = fmt.Errorf("writing after the end: %w", syscall.EPIPE)
)

// wait returns a channel that is closed at the next change. s.mu is held.
func (s *Stream) wait() <-chan struct{} {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// notify wakes all waiting goroutines. s.mu is held.
func (s *Stream) notify() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// until waits for a change, or for the deadline where there is one.
func until(changed <-chan struct{}, deadline time.Time) {
	if deadline.IsZero() {
		<-changed
		return
	}
	t := time.NewTimer(time.Until(deadline))
	defer t.Stop()
	select {
	case <-changed:
	case <-t.C:
	}
}

func passed(deadline time.Time) bool { return !deadline.IsZero() && !time.Now().Before(deadline) }

// awaitAccept waits for the peer's answer to an open.
func (s *Stream) awaitAccept(ctx context.Context) error {
	for {
		s.mu.Lock()
		if s.accepted {
			s.mu.Unlock()
			return nil
		}
		if s.writeErr != nil {
			defer s.mu.Unlock()
			return s.writeErr
		}
		changed := s.wait()
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%s has not answered: %w", s.mux.config.Peer, context.Cause(ctx))
		}
	}
}

// allowed is called when the peer lets us send more.
func (s *Stream) allowed(n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.accepted && n == 0 || n+int64(s.credit) > 1<<30 {
		return protocolError("a window of %d bytes", n)
	}
	if !s.accepted {
		s.answered()
	}
	s.accepted = true
	s.credit += int(n)
	s.notify()
	return nil
}

// received is called when data has come.
func (s *Stream) received(data []byte, fin bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answered()
	s.accepted = true // the window that accepts it may be behind
	if len(data) > s.room {
		return protocolError("%d bytes beyond the window of a stream", len(data)-s.room)
	}
	if s.readErr != nil {
		if errors.Is(s.readErr, io.EOF) {
			return protocolError("data after the end of a stream")
		}
		return nil // closed here, and the peer has not been notified yet
	}
	s.room -= len(data)
	if len(data) > 0 {
		s.keep(data)
	}
	if fin {
		s.readErr = io.EOF
	}
	s.notify()
	return nil
}

// answered measures the way to the peer and back, once, before there is data that it could wait
// behind: the first data is short, the hello of TLS. s.mu is held.
func (s *Stream) answered() {
	if s.round == 0 {
		s.round, s.since = max(time.Since(s.asked), 1), s.asked
	}
}

// resize makes the window as large as the path needs it, and returns by how much it grew. The bytes
// of a window beyond that wait somewhere on the path, before the bottleneck, and everything else
// that the link carries waits behind it. So it doubles only while a round trip at the rate of now
// would take half of it, and halves again where that has brought no more. It is called when half a
// window, or more, was read: the peer's credit never exceeds a window that has been halved. s.mu is
// held.
func (s *Stream) resize(read int) int {
	const (
		slack = 50 * time.Millisecond // for the readers and writers at the ends
		rest  = 10 * time.Second      // before a failed path is retried
	)
	old := s.window
	if s.moved += read; s.moved < 2*old {
		return 0
	}
	now := time.Now()
	rate := float64(s.moved) / float64(max(now.Sub(s.since), time.Microsecond))
	s.moved, s.since = 0, now
	need, before := rate*float64(s.round+slack), s.before
	s.before = 0
	switch {
	case before > 0 && rate < before*5/4:
		s.window, s.again = max(old/2, minWindow), now.Add(rest)
	case need < float64(old/4):
		s.window = max(old/2, minWindow)
	case need >= float64(old/2) && old < s.most && now.After(s.again):
		s.window, s.before = min(2*old, s.most), rate
	}
	return s.window - old
}

// keep adds data to the buffer. Small pieces are put together, so that the window bounds the memory
// that they take. s.mu is held.
func (s *Stream) keep(data []byte) {
	const small, block = 512, 4 << 10
	if last := len(s.buffer) - 1; last >= 0 && len(data) < small && len(s.buffer[last])+len(data) <= block {
		s.buffer[last] = append(s.buffer[last], data...)
		return
	}
	s.buffer = append(s.buffer, data)
}

// closed is called when the peer has ended the stream.
func (s *Stream) closed(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if reason != "" {
		s.finish(&Refused{s.mux.config.Peer, reason}, "")
		return
	}
	if s.readErr == nil {
		s.readErr = io.EOF
	}
	if !s.accepted {
		s.readErr = &Refused{s.mux.config.Peer, "refused"}
		s.writeErr = s.readErr
	}
	s.finish(errShut, "")
}

// end is called when the session has ended: received data can still be read.
func (s *Stream) end(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finish(why, "")
}

// finish ends both directions, where they have not ended yet. s.mu is held.
func (s *Stream) finish(why error, reason string) {
	if s.readErr == nil {
		s.readErr = why
	}
	if s.writeErr == nil {
		s.writeErr = why
		s.reason = reason
	}
	if s.cancel != nil {
		s.cancel()
	}
	s.notify()
}

// leave notifies the peer of the stream's end, once, and drops data that will not be read.
func (s *Stream) leave(why error, reason string) {
	s.mu.Lock()
	s.buffer = nil
	if errors.Is(s.readErr, io.EOF) || s.readErr == nil {
		s.readErr = why
	}
	if errors.Is(s.writeErr, errShut) { // half closed, or by the peer
		s.writeErr = why
	}
	s.finish(why, reason)
	s.mu.Unlock()

	m := s.mux
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.windows, s)
	if m.streams[s.id] != s { // the peer has been notified, or the session has ended
		return
	}
	for _, have := range m.closes {
		if have == s {
			return
		}
	}
	m.closes = append(m.closes, s)
	m.poke(closes)
}

// Close ends the stream in both directions. Written data is still sent.
func (s *Stream) Close() error {
	s.leave(net.ErrClosed, "")
	return nil
}

// abort is a Close that gives the reason.
func (s *Stream) abort(reason string) { s.leave(net.ErrClosed, reason) }

// Read returns received data. io.EOF is the peer's proper end; the end of a session is an
// error that names it.
func (s *Stream) Read(b []byte) (int, error) {
	for {
		s.mu.Lock()
		if len(b) == 0 {
			s.mu.Unlock()
			return 0, nil
		}
		if passed(s.readDeadline) {
			s.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		}
		n := 0
		for len(s.buffer) > 0 && n < len(b) {
			took := copy(b[n:], s.buffer[0])
			n += took
			if s.buffer[0] = s.buffer[0][took:]; len(s.buffer[0]) == 0 {
				s.buffer[0] = nil
				s.buffer = s.buffer[1:]
			}
		}
		if n > 0 {
			if len(s.buffer) == 0 {
				s.buffer = nil // an idle stream keeps no memory
			}
			s.read += n
			due := 0
			// Half a window at a time: the peer sends while the other half is on its way.
			if s.read >= s.window/2 && s.readErr == nil {
				due, s.read = s.read+s.resize(s.read), 0
			}
			s.mu.Unlock()
			if due > 0 {
				s.grant(due)
			}
			return n, nil
		}
		if err := s.readErr; err != nil {
			s.mu.Unlock()
			return 0, err
		}
		changed, deadline := s.wait(), s.readDeadline
		s.mu.Unlock()
		until(changed, deadline)
	}
}

// grant lets the peer send n bytes more. It never waits.
func (s *Stream) grant(n int) {
	s.mu.Lock()
	s.granted += n
	s.mu.Unlock()
	m := s.mux
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.streams[s.id] == s {
		m.windows[s] = struct{}{}
		m.poke(windows)
	}
}

// takeGrant returns the window that the peer is to be granted now.
func (s *Stream) takeGrant() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.granted
	s.granted = 0
	// The first is the window that the stream began with.
	s.room = min(s.room+n, s.window)
	return n
}

// Write sends b, and returns when the link's queue has taken all of it.
func (s *Stream) Write(b []byte) (int, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	done := 0
	for done < len(b) {
		n, err := s.reserve(len(b) - done)
		if err != nil {
			return done, err
		}
		if err := s.transmit(&topicpb.StreamData{Id: s.id, Data: b[done : done+n : done+n]}); err != nil {
			s.release(n)
			if errors.Is(err, errAgain) {
				continue
			}
			return done, err
		}
		done += n
	}
	return done, nil
}

// reserve waits until at least one byte may be sent, and takes at most that many.
func (s *Stream) reserve(most int) (int, error) {
	for {
		s.mu.Lock()
		if s.writeErr != nil {
			defer s.mu.Unlock()
			return 0, s.writeErr
		}
		if s.fin {
			s.mu.Unlock()
			return 0, errShut
		}
		if passed(s.writeDeadline) {
			s.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		}
		if n := min(most, s.credit, chunk); n > 0 {
			s.credit -= n
			s.mu.Unlock()
			return n, nil
		}
		changed, deadline := s.wait(), s.writeDeadline
		s.mu.Unlock()
		until(changed, deadline)
	}
}

func (s *Stream) release(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.credit += n
}

// errAgain means that a Send was interrupted: Write checks the deadline and the stream's state
// again.
var errAgain = errors.New("interrupted")

// transmit hands data to the link. An error means that it did not go.
func (s *Stream) transmit(data *topicpb.StreamData) error {
	ctx, cancel := context.WithCancel(s.mux.ctx)
	defer cancel()
	s.mu.Lock()
	if s.writeErr != nil {
		defer s.mu.Unlock()
		return s.writeErr
	}
	s.cancel = cancel
	if deadline := s.writeDeadline; !deadline.IsZero() {
		defer time.AfterFunc(time.Until(deadline), cancel).Stop()
	}
	s.mu.Unlock()
	err := s.mux.send.Send(ctx, topic.StreamData.New(message.Resource{}, data))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel = nil
	switch {
	case err == nil:
		return nil
	case s.writeErr != nil:
		return s.writeErr
	case ctx.Err() != nil && s.mux.ctx.Err() == nil:
		return errAgain
	}
	return fmt.Errorf("the link to %s ended: %w", s.mux.config.Peer, err)
}

// CloseWrite ends the data that this end sends; received data can still be read.
func (s *Stream) CloseWrite() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	for {
		s.mu.Lock()
		done, err := s.fin, s.writeErr
		late := passed(s.writeDeadline)
		s.mu.Unlock()
		switch {
		case err != nil:
			return err
		case done:
			return nil
		case late:
			return os.ErrDeadlineExceeded
		}
		switch err := s.transmit(&topicpb.StreamData{Id: s.id, Fin: true}); {
		case err == nil:
			s.mu.Lock()
			s.fin = true
			s.mu.Unlock()
			return nil
		case !errors.Is(err, errAgain):
			return err
		}
	}
}

// SetDeadline implements net.Conn.
func (s *Stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (s *Stream) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readDeadline = t
	s.notify()
	return nil
}

// SetWriteDeadline implements net.Conn.
func (s *Stream) SetWriteDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeDeadline = t
	if s.cancel != nil {
		s.cancel()
	}
	s.notify()
	return nil
}

// LocalAddr implements net.Conn.
func (s *Stream) LocalAddr() net.Addr { return addr("stream") }

// RemoteAddr implements net.Conn.
func (s *Stream) RemoteAddr() net.Addr { return addr(s.mux.config.Peer) }

// addr is the address of a stream: the name of the peer.
type addr string

func (addr) Network() string  { return "skerry" }
func (a addr) String() string { return string(a) }
