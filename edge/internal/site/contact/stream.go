package contact

import (
	"context"
	"time"

	"github.com/quic-go/quic-go"
)

// Stream carries requests for programs, and the answers: one QUIC stream each way. Its zero value
// is not usable. One goroutine may read while another one writes.
type Stream struct {
	conn *quic.Conn
	send *quic.SendStream

	receive  *quic.ReceiveStream // nil before the peer has sent the first byte
	deadline time.Time           // of reading
}

// newStream opens this end's direction.
func newStream(ctx context.Context, conn *quic.Conn) (*Stream, error) {
	send, err := conn.OpenUniStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	return &Stream{conn: conn, send: send}, nil
}

// Read implements io.Reader. A peer's stream exists from its first byte on (RFC 9000, 2.1).
func (s *Stream) Read(b []byte) (int, error) {
	if s.receive == nil {
		ctx, cancel := s.conn.Context(), context.CancelFunc(func() {})
		if !s.deadline.IsZero() {
			ctx, cancel = context.WithDeadline(ctx, s.deadline)
		}
		defer cancel()
		receive, err := s.conn.AcceptUniStream(ctx)
		if err != nil {
			return 0, err
		}
		s.receive = receive
		if err := s.receive.SetReadDeadline(s.deadline); err != nil {
			return 0, err
		}
	}
	return s.receive.Read(b)
}

// Write implements io.Writer.
func (s *Stream) Write(b []byte) (int, error) { return s.send.Write(b) }

// SetReadDeadline bounds the Reads after it.
func (s *Stream) SetReadDeadline(at time.Time) error {
	s.deadline = at
	if s.receive == nil {
		return nil
	}
	return s.receive.SetReadDeadline(at)
}

// SetWriteDeadline bounds the Writes after it.
func (s *Stream) SetWriteDeadline(at time.Time) error { return s.send.SetWriteDeadline(at) }

// Close ends the connection at once.
func (s *Stream) Close() error { return s.conn.CloseWithError(0, "done") }
