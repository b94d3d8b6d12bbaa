package deadline

import (
	"errors"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNothing is the error of a read within Try that would have to wait. It is temporary:
// crypto/tls keeps the part of a record that it has read, and a later read continues.
var ErrNothing net.Error = nothing{}

type nothing struct{}

func (nothing) Error() string   { return "no data yet" }
func (nothing) Timeout() bool   { return false }
func (nothing) Temporary() bool { return true }

// Waits reports whether Wait and Try can be used: the connection is TCP's and not
// something around it.
func (c *Conn) Waits() bool { return c.raw != nil }

// Wait returns when there is something to read, be it the end, and fails when no data came for as
// long as a read may take. It needs almost no stack: the layers above this connection, TLS above
// all, has far deeper reads, and a goroutine that waits in one of them keeps a stack for that.
func (c *Conn) Wait() error {
	if err := c.move(c.Conn.SetReadDeadline); err != nil {
		return err
	}
	for {
		err := c.raw.Read(readable)
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || !c.bear() {
			return err
		}
	}
}

// readable asks the kernel: epoll reports changes alone, and data that came before the runtime
// began to poll is no change.
func readable(fd uintptr) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	return n != 0 && !errors.Is(err, unix.EINTR) // an error is found by the read
}

// Try calls f, whose reads fail by ErrNothing instead of waiting. No other goroutine may read
// in the meantime.
func (c *Conn) Try(f func() error) error {
	c.trying = true
	defer func() { c.trying = false }()
	return f()
}

// try reads available data.
func (c *Conn) try(b []byte) (n int, err error) {
	if len(b) == 0 {
		return 0, nil
	}
	broken := c.raw.Read(func(fd uintptr) bool {
		for {
			if n, err = unix.Read(int(fd), b); !errors.Is(err, unix.EINTR) {
				return true
			}
		}
	})
	switch {
	case broken != nil:
		return 0, broken
	case errors.Is(err, unix.EAGAIN):
		return 0, ErrNothing
	case err != nil:
		return 0, &net.OpError{Op: "read", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError("read", err)}
	case n == 0:
		return 0, io.EOF
	}
	c.mu.Lock()
	c.heard = time.Now()
	c.mu.Unlock()
	return n, nil
}
