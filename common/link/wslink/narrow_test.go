package wslink_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/link/wslink"
)

// A path that drops large packets silently: TCP's own handshake gets through it, that of TLS does
// not. The error names it, and the next dial keeps segments small, both ways.
func TestClaims_22_SmallSegmentsWhereLargeOnesAreLost(t *testing.T) {
	s := linktest.NewSite(t)
	bounds := link.Default()
	bounds.HandshakeTimeout = 2 * time.Second
	hole, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hole.Close() })
	var least atomic.Int64 // the largest segment of the last connection
	go func() {
		for {
			c, err := hole.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() }) // silent until then
			tcp, ok := c.(syscall.Conn)
			if !ok {
				return
			}
			if raw, err := tcp.SyscallConn(); err == nil {
				_ = raw.Control(func(fd uintptr) {
					if size, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG); err == nil {
						least.Store(int64(size))
					}
				})
			}
		}
	}()
	d := newDialer(t, wslink.DialConfig{Link: bounds, TLS: s.ClientTLS()})
	dial := func(address string) error {
		conn, err := d.Dial(t.Context(), address)
		if err == nil {
			_ = conn.Close(link.CloseShutdown, "")
		}
		return err
	}
	if err := dial("127.0.0.1:1"); err == nil || strings.Contains(err.Error(), "MTU") {
		t.Errorf("a refused connection: %v", err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, cancel) // as of a dialer that has connected by QUIC
	if _, err := d.Dial(cancelled, hole.Addr().String()); err == nil || strings.Contains(err.Error(), "MTU") {
		t.Errorf("a dial that was cancelled: %v", err)
	}
	err = dial(hole.Addr().String())
	if err == nil || !strings.Contains(err.Error(), "MTU") || errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a handshake that does not get through: %v", err)
	}
	if got := least.Load(); got <= 1200 {
		t.Errorf("segments of %d bytes from the start", got)
	}
	if err := dial(hole.Addr().String()); err == nil || !strings.Contains(err.Error(), "not with small packets either") {
		t.Errorf("again: %v", err)
	}
	if got := least.Load(); got == 0 || got > 1120 {
		t.Errorf("segments of %d bytes at the second try, want 1120 at most", got)
	}
}
