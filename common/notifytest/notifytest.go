// Package notifytest is systemd's end of sd_notify(3), for tests.
//
// It owns the socket, for one test each. Its methods are called by one goroutine.
package notifytest

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// Systemd receives the process's notifications.
type Systemd struct {
	t      testing.TB
	socket *net.UnixConn
}

// New listens, and sets NOTIFY_SOCKET for the test's time.
func New(t testing.TB) *Systemd {
	t.Helper()
	file := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: file, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	t.Setenv("NOTIFY_SOCKET", file)
	return &Systemd{t, socket}
}

// Watch expects a notification within each such time, as WatchdogSec= has it.
func (s *Systemd) Watch(within time.Duration) {
	s.t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	s.t.Setenv("WATCHDOG_USEC", strconv.FormatInt(within.Microseconds(), 10))
}

// Hear waits for the next message.
func (s *Systemd) Hear() string {
	s.t.Helper()
	b := make([]byte, 64)
	n, err := s.socket.Read(b)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b[:n])
}

// Mark puts a message of the test's own behind those that were sent.
func (s *Systemd) Mark(text string) {
	s.t.Helper()
	if _, err := s.socket.WriteTo([]byte(text), s.socket.LocalAddr()); err != nil {
		s.t.Fatal(err)
	}
}
