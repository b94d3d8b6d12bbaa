package tunnel

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// copySize is the buffer of one direction of Splice: a message's worth.
const copySize = chunk

// The bytes of a client that does not close are discarded for as long as the last megabytes of an
// answer take over a thin link, and only as many as pings have: all others are of an end that sends
// to one that is gone.
const (
	lingerTimeout = 10 * time.Minute
	lingerBytes   = 64 << 10
)

// Splice copies between two connections until both directions have ended, one of them can't be read
// any more, or ctx ends, and closes both. The end of one direction is handed on as such where the
// connection has a CloseWrite.
//
// A connection that takes no more data has ended that direction alone: a server that closes as
// soon as it has answered, as a kubelet does after an exec, resets the connection at the next byte
// of the client (a ping), and its answer is still to be read here. The client's bytes are discarded
// from then on, up to a bound: its connection would be reset by the next if it were closed, and the
// part of the answer that waits in the kernel be dropped (RFC 9112, section 9.6).
func Splice(ctx context.Context, a, b net.Conn) {
	shut := sync.OnceFunc(func() { _, _ = a.Close(), b.Close() }) // both copies end with an error of their own
	defer shut()
	defer context.AfterFunc(ctx, shut)()
	var both sync.WaitGroup
	both.Go(func() { pass(a, b, shut) })
	both.Go(func() { pass(b, a, shut) })
	both.Wait()
}

// pass copies one direction.
func pass(to, from net.Conn, shut func()) {
	w := &taker{conn: to}
	// Without the methods by which io.Copy would take another buffer than this one.
	reader, buffer := struct{ io.Reader }{from}, make([]byte, copySize)
	_, err := io.CopyBuffer(w, reader, buffer)
	switch {
	case w.err != nil:
		defer time.AfterFunc(lingerTimeout, shut).Stop()
		if n, _ := io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.LimitReader(reader, lingerBytes), buffer); n == lingerBytes {
			shut()
		}
		return // the other direction ends by itself, since nobody writes to it any more
	case err != nil:
		if s, ok := to.(interface{ abort(reason string) }); ok && !errors.Is(err, net.ErrClosed) { // a Stream, whose peer gets the reason
			s.abort(err.Error())
		}
		shut()
		return
	}
	half, ok := to.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		shut()
	}
}

// taker writes to a connection and keeps the error.
type taker struct {
	conn net.Conn
	err  error
}

func (w *taker) Write(b []byte) (n int, err error) {
	n, w.err = w.conn.Write(b)
	return n, w.err
}
