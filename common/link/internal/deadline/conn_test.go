package deadline_test

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skerry-io/skerry/common/link/internal/deadline"
)

const idle = 10 * time.Second

func pair(t *testing.T) (*deadline.Conn, net.Conn) {
	t.Helper()
	a, b := net.Pipe()
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	c := deadline.Wrap(a)
	if err := c.Arm(idle); err != nil {
		t.Fatal(err)
	}
	return c, b
}

// A write that makes progress, however slowly, continues.
func TestConn_SlowIsNotStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, other := pair(t)
		go func() {
			for range 100 {
				time.Sleep(idle * 9 / 10)
				if _, err := io.ReadFull(other, make([]byte, 1)); err != nil {
					t.Error(err)
				}
			}
		}()
		if n, err := c.Write(make([]byte, 100)); n != 100 || err != nil {
			t.Errorf("wrote %d, %v", n, err)
		}
	})
}

func TestConn_StalledIsNoticed(t *testing.T) {
	for name, stall := range map[string]func(*deadline.Conn, net.Conn) error{
		"reading": func(c *deadline.Conn, _ net.Conn) error { _, err := c.Read(make([]byte, 1)); return err },
		"writing": func(c *deadline.Conn, _ net.Conn) error { _, err := c.Write(make([]byte, 1)); return err },
		"writing, after a part": func(c *deadline.Conn, other net.Conn) error {
			go func() { _, _ = io.ReadFull(other, make([]byte, 1)) }()
			_, err := c.Write(make([]byte, 100))
			return err
		},
		"though others lift the deadline": func(c *deadline.Conn, _ net.Conn) error {
			if err := errors.Join(c.SetDeadline(time.Time{}), c.SetReadDeadline(time.Time{}), c.SetWriteDeadline(time.Time{})); err != nil {
				return err
			}
			_, err := c.Read(make([]byte, 1))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, other := pair(t)
				start := time.Now()
				err := stall(c, other)
				if took := time.Since(start); !errors.Is(err, os.ErrDeadlineExceeded) || took < idle || took > 2*idle {
					t.Errorf("%v after %v", err, took)
				}
			})
		})
	}
}

func TestConn_Final(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := pair(t)
		failed := make(chan error, 2)
		go func() { _, err := c.Read(make([]byte, 1)); failed <- err }()
		go func() { _, err := c.Write(make([]byte, 1)); failed <- err }()
		synctest.Wait()
		start := time.Now()
		if err := c.Final(start, start.Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		for _, want := range []time.Duration{0, time.Second} {
			if err := <-failed; !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != want {
				t.Errorf("%v after %v, want %v", err, time.Since(start), want)
			}
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) { // for good
			t.Errorf("Read: %v", err)
		}
	})
}

func TestConn_HeardAndNotArmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		defer a.Close()
		defer b.Close()
		c := deadline.Wrap(a)
		if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil { // counts until the Conn is armed
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if err := c.Arm(idle); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = b.Write([]byte("x")) }()
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if got := c.Heard(); !got.Equal(time.Now()) {
			t.Errorf("heard at %v, now is %v", got, time.Now())
		}
	})
}

// Acknowledgements make up for bytes, for as long as the peer is believed without any.
func TestConn_AcknowledgementsCount(t *testing.T) {
	for name, test := range map[string]struct {
		acks time.Duration // for how long they continue, one each 8 s
		fail error
		want time.Duration
	}{
		"none":                  {acks: 0, want: idle},
		"they end":              {acks: 24 * time.Second, want: 24*time.Second + idle},
		"they go on":            {acks: time.Hour, want: 5 * idle},
		"no TCP_INFO":           {acks: time.Hour, fail: errors.New("no TCP_INFO"), want: idle},
		"less than patience":    {acks: 8 * time.Second, want: 8*time.Second + idle},
		"the last is not heard": {acks: 16 * time.Second, want: 16*time.Second + idle},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := net.Pipe()
				defer func() { _, _ = a.Close(), b.Close() }()
				start := time.Now()
				c := deadline.Wrap(a)
				c.Acked(5*idle, func() (time.Duration, error) {
					return time.Since(start) - min(time.Since(start).Truncate(8*time.Second), test.acks), test.fail
				})
				if err := c.Arm(idle); err != nil {
					t.Fatal(err)
				}
				_, err := c.Read(make([]byte, 1))
				if d := time.Since(start); !errors.Is(err, os.ErrDeadlineExceeded) || d != test.want {
					t.Errorf("%v after %v, want %v", err, d, test.want)
				}
			})
		})
	}
}
