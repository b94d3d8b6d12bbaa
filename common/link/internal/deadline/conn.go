// Package deadline gives a net.Conn deadlines that move: a read or write fails when for a time not
// one byte has passed.
//
// It owns the deadlines of the connection that it wraps: once armed, those that others set are
// ignored. It must be beneath TLS, which can't continue after a write that ended half way. A Conn
// may be used by many goroutines at once, like any net.Conn.
package deadline

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Conn is a net.Conn with moving deadlines.
type Conn struct {
	net.Conn

	mu    sync.Mutex
	idle  time.Duration // 0: not armed
	final bool          // the deadlines are set for good
	heard time.Time     // when bytes came last

	acked    func() (time.Duration, error) // how long ago the peer's kernel acknowledged anything; nil: bytes alone count
	patience time.Duration                 // how long acknowledgements make up for bytes

	raw    syscall.RawConn // of a TCP connection; else nil
	trying bool            // owned by the reading goroutine: within Try
}

// Wrap returns c, not armed yet: it behaves as c does.
func Wrap(c net.Conn) *Conn {
	w := &Conn{Conn: c}
	if tcp, ok := c.(*net.TCPConn); ok {
		if raw, err := tcp.SyscallConn(); err == nil {
			w.raw = raw
		}
	}
	return w
}

// Arm lets each read and write wait for idle, from now on.
func (c *Conn) Arm(idle time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle, c.heard = idle, time.Now()
	return c.Conn.SetDeadline(time.Time{})
}

// Acked lets acknowledgements count as bytes that came: a read fails when for idle there were
// neither, or for patience no bytes. ago returns how long ago the peer acknowledged anything. Call
// it before Arm.
func (c *Conn) Acked(patience time.Duration, ago func() (time.Duration, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acked, c.patience = ago, patience
}

// Final sets both deadlines for good.
func (c *Conn) Final(read, write time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.final = true
	return errors.Join(c.Conn.SetReadDeadline(read), c.Conn.SetWriteDeadline(write))
}

// Heard is when the peer gave its last sign of life.
func (c *Conn) Heard() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.acked != nil {
		if ago, err := c.acked(); err == nil {
			if at := time.Now().Add(-ago); at.After(c.heard) {
				return at
			}
		}
	}
	return c.heard
}

func (c *Conn) Read(b []byte) (int, error) {
	if c.trying {
		return c.try(b)
	}
	if err := c.move(c.Conn.SetReadDeadline); err != nil {
		return 0, err
	}
	for {
		n, err := c.Conn.Read(b)
		if n > 0 {
			c.mu.Lock()
			c.heard = time.Now()
			c.mu.Unlock()
			return n, err
		}
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || !c.bear() {
			return n, err
		}
	}
}

// bear extends the read deadline where acknowledgements allow that, and reports whether it did.
func (c *Conn) bear() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.acked == nil || c.idle == 0 || c.final {
		return false
	}
	now := time.Now()
	ago, err := c.acked()
	left := min(c.idle-ago, c.patience-now.Sub(c.heard))
	return err == nil && left > 0 && c.Conn.SetReadDeadline(now.Add(left)) == nil
}

// Write continues after a timeout for as long as bytes pass.
func (c *Conn) Write(b []byte) (int, error) {
	written := 0
	for {
		if err := c.move(c.Conn.SetWriteDeadline); err != nil {
			return written, err
		}
		n, err := c.Conn.Write(b[written:])
		written += n
		if err == nil || n == 0 || !errors.Is(err, os.ErrDeadlineExceeded) || !c.moving() {
			return written, err
		}
	}
}

func (c *Conn) move(set func(time.Time) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idle == 0 || c.final {
		return nil
	}
	return set(time.Now().Add(c.idle))
}

func (c *Conn) moving() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.idle > 0 && !c.final
}

// SetDeadline, SetReadDeadline and SetWriteDeadline are no-ops once the Conn is armed.
func (c *Conn) SetDeadline(t time.Time) error      { return c.foreign(c.Conn.SetDeadline, t) }
func (c *Conn) SetReadDeadline(t time.Time) error  { return c.foreign(c.Conn.SetReadDeadline, t) }
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.foreign(c.Conn.SetWriteDeadline, t) }

func (c *Conn) foreign(set func(time.Time) error, t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idle > 0 || c.final {
		return nil
	}
	return set(t)
}
