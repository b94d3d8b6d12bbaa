package tunnel

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
)

// copySize is the buffer of one direction of Splice: a message's worth.
const copySize = chunk

// Splice copies between two connections until both directions have ended, one of them has failed,
// or ctx ends, and closes both. The end of one direction is handed on as such where the connection
// has a CloseWrite.
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
	// Without the methods by which io.Copy would take another buffer than this one.
	if _, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, copySize)); err != nil {
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
