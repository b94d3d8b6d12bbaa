package console

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// conn is a connection that ends with its machine, or when it has lasted too long.
type conn struct {
	net.Conn
	cancel context.CancelFunc

	mu  sync.Mutex
	why error // set before Conn is closed; nil while it is open, and where its reader closed it
}

// newConn follows the machine until the connection is closed, and calls back once then.
func newConn(far net.Conn, m machine, version string, longest time.Duration, back func()) *conn {
	ctx, cancel := context.WithTimeoutCause(context.Background(), longest, fmt.Errorf("a console ends after %v", longest))
	c := &conn{Conn: far, cancel: cancel}
	go func() { // ends by cancel: the stream's Splice closes both ends
		defer back()
		defer cancel()
		c.end(m.ended(ctx, version))
	}()
	return c
}

// end closes the connection for a reason, which Read returns.
func (c *conn) end(why error) {
	c.mu.Lock()
	if c.why == nil {
		c.why = why
	}
	c.mu.Unlock()
	_ = c.Conn.Close()
}

// Read implements net.Conn. That the far end has closed is io.EOF; that the machine ended is an
// error, which the device gets to see.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.why != nil {
			err = c.why
		}
	}
	return n, err
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.mu.Lock()
	if c.why == nil {
		c.why = io.EOF // of no interest to the caller: there is no reason to show
	}
	c.mu.Unlock()
	c.cancel()
	return c.Conn.Close()
}

// silent is a connection that delivers no data until it is closed, and drops writes.
func silent() net.Conn {
	near, far := net.Pipe()
	go func() { // ends when near is closed
		_, _ = io.Copy(io.Discard, far)
		_ = far.Close()
	}()
	return near
}
