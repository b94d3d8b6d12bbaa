package deadline_test

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/skerry-io/skerry/common/link/internal/deadline"
)

// sockets are the two ends of a TCP connection, the first of them wrapped and armed.
func sockets(t *testing.T, idle time.Duration) (*deadline.Conn, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	other, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	own, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = own.Close(), other.Close() })
	c := deadline.Wrap(own)
	if err := c.Arm(idle); err != nil {
		t.Fatal(err)
	}
	return c, other
}

func try(c *deadline.Conn, b []byte) (n int, err error) {
	err = c.Try(func() (err error) { n, err = c.Read(b); return err })
	return n, err
}

// Each byte is seen exactly once, however waits, tries and reads take turns.
func TestConn_WaitsAndTries(t *testing.T) {
	c, other := sockets(t, time.Minute)
	if !c.Waits() {
		t.Fatal("a TCP connection can't be waited for")
	}
	b := make([]byte, 2)
	if n, err := try(c, b); n != 0 || err != deadline.ErrNothing {
		t.Fatalf("read %d, %v; nothing has been written", n, err)
	}
	for range 1000 {
		wrote := make(chan error, 1)
		go func() {
			_, err := other.Write([]byte{1, 2, 3})
			wrote <- err
		}()
		if err := errors.Join(c.Wait(), <-wrote, c.Wait()); err != nil { // the second, too: it is there already
			t.Fatal(err)
		}
		for _, want := range []int{2, 1} {
			if n, err := try(c, b); n != want || err != nil {
				t.Fatalf("read %d, %v, want %d", n, err, want)
			}
		}
		if n, err := try(c, b); n != 0 || err != deadline.ErrNothing {
			t.Fatalf("read %d, %v; all has been read", n, err)
		}
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	if n, err := try(c, b); n != 0 || err != io.EOF {
		t.Errorf("at the end read %d, %v", n, err)
	}
}

func TestConn_WaitNoticesSilenceAndStop(t *testing.T) {
	c, _ := sockets(t, 10*time.Millisecond)
	if err := c.Wait(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the wait for a silent peer ended with %v", err)
	}
	c, _ = sockets(t, time.Hour)
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	now := time.Now()
	if err := c.Final(now, now); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the wait ended with %v", err)
	}
	if a, _ := net.Pipe(); deadline.Wrap(a).Waits() {
		t.Error("what is no socket can be waited for")
	}
}
