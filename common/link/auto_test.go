package link_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
)

// fakeConn is an open link of which only the parts that Auto looks at are real.
type fakeConn struct {
	transport link.Transport
	since     time.Time
	err       error
	closed    chan struct{}
}

func (c *fakeConn) Send(context.Context, message.Message) error { return errors.ErrUnsupported }
func (c *fakeConn) Receive(context.Context) (message.Message, error) {
	return message.Message{}, errors.ErrUnsupported
}
func (c *fakeConn) Poll() (message.Message, bool)      { return message.Message{}, false }
func (c *fakeConn) Notify(_, _ func())                 {}
func (c *fakeConn) Close(link.CloseCode, string) error { close(c.closed); return nil }
func (c *fakeConn) Done() <-chan struct{}              { return c.closed }
func (c *fakeConn) Err() error                         { return c.err }
func (c *fakeConn) Info() link.Info                    { return link.Info{Transport: c.transport, Since: c.since} }

// fakeDialer opens a link after a time, or fails, or waits for ever.
type fakeDialer struct {
	transport link.Transport
	after     time.Duration
	err       error
	silent    bool // no answer ever
	deaf      bool // opens although its context has ended
	dialled   int
	conn      *fakeConn // the last
}

func (d *fakeDialer) Dial(ctx context.Context, _ string) (link.Conn, error) {
	d.dialled++
	open := time.After(d.after)
	if d.silent {
		open = nil
	}
	end := ctx.Done()
	if d.deaf {
		end = nil
	}
	select {
	case <-open:
	case <-end:
		return nil, context.Cause(ctx)
	}
	if d.err != nil {
		return nil, d.err
	}
	d.conn = &fakeConn{transport: d.transport, since: time.Now(), closed: make(chan struct{})}
	return d.conn, nil
}

func TestAuto(t *testing.T) {
	const ms = time.Millisecond
	blocked := errors.New("blocked")
	for name, test := range map[string]struct {
		quic, ws fakeDialer
		want     link.Transport
		within   time.Duration
		dialled  [2]int // quic, ws
	}{
		"QUIC works":                 {fakeDialer{after: 100 * ms}, fakeDialer{after: 50 * ms}, link.QUIC, 100 * ms, [2]int{1, 0}},
		"UDP is dropped":             {fakeDialer{silent: true}, fakeDialer{after: 50 * ms}, link.WebSocket, 550 * ms, [2]int{1, 1}},
		"UDP is refused":             {fakeDialer{err: blocked}, fakeDialer{after: 50 * ms}, link.WebSocket, 50 * ms, [2]int{1, 1}},
		"a long path, QUIC quicker":  {fakeDialer{after: 800 * ms}, fakeDialer{after: 800 * ms}, link.QUIC, 800 * ms, [2]int{1, 1}},
		"neither":                    {fakeDialer{err: blocked}, fakeDialer{err: blocked}, "", 0, [2]int{1, 1}},
		"both at one moment":         {fakeDialer{after: 600 * ms, deaf: true}, fakeDialer{after: 200 * ms, deaf: true}, link.WebSocket, 0, [2]int{1, 1}},
		"the second is refused late": {fakeDialer{after: 700 * ms}, fakeDialer{err: blocked, after: 50 * ms}, link.QUIC, 700 * ms, [2]int{1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				quic, ws := test.quic, test.ws
				quic.transport, ws.transport = link.QUIC, link.WebSocket
				start := time.Now()
				c, err := link.Auto(&quic, &ws).Dial(t.Context(), "cloud:10000")
				synctest.Wait()
				if test.want == "" {
					if !errors.Is(err, blocked) {
						t.Errorf("Dial: %v, want both errors", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(start); test.within > 0 && took != test.within {
					t.Errorf("took %v, want %v", took, test.within)
				}
				if diff := cmp.Diff(test.dialled, [2]int{quic.dialled, ws.dialled}); diff != "" {
					t.Errorf("dialled (-want +got):\n%s", diff)
				}
				for _, d := range []*fakeDialer{&quic, &ws} {
					if d.conn == nil {
						continue
					}
					open := true
					select {
					case <-d.conn.closed:
						open = false
					default:
					}
					if chosen := d.conn == c; chosen != open && name != "both at one moment" || !chosen && open {
						t.Errorf("%s: open %v, chosen %v", d.transport, open, chosen)
					}
				}
			})
		})
	}
}

// A replica that died: its machine refuses TCP, and UDP is silent. The dial is over long before the
// dialer's own bound, and QUIC still has the time of a handshake where TCP alone is refused.
func TestAuto_Refused(t *testing.T) {
	const ms = time.Millisecond
	refused := fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
	for name, test := range map[string]struct {
		quic, ws fakeDialer
		opens    bool
		within   time.Duration
	}{
		"silent by QUIC":                  {fakeDialer{silent: true}, fakeDialer{err: refused, after: 20 * ms}, false, 5520 * ms},
		"silent by QUIC, a long way":      {fakeDialer{silent: true}, fakeDialer{err: refused, after: 700 * ms}, false, 6800 * ms},
		"QUIC alone is served":            {fakeDialer{after: 2 * time.Second}, fakeDialer{err: refused, after: 700 * ms}, true, 2 * time.Second},
		"silent by TCP, refused by QUIC":  {fakeDialer{err: refused, after: 20 * ms}, fakeDialer{silent: true}, false, 5020 * ms},
		"silent by QUIC, TLS has a fault": {fakeDialer{silent: true}, fakeDialer{err: errors.New("no authority")}, false, 15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				quic, ws := test.quic, test.ws
				ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
				defer cancel()
				start := time.Now()
				_, err := link.Auto(&quic, &ws).Dial(ctx, "cloud:10000")
				if took := time.Since(start); (err == nil) != test.opens || took != test.within {
					t.Errorf("%v after %v, want %v", err, took, test.within)
				}
			})
		})
	}
}

func TestAuto_Remembers(t *testing.T) {
	const ms = time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		quic := &fakeDialer{transport: link.QUIC, silent: true}
		ws := &fakeDialer{transport: link.WebSocket, after: 100 * ms}
		auto := link.Auto(quic, ws)
		dial := func(want link.Transport, took time.Duration) {
			t.Helper()
			start := time.Now()
			c, err := auto.Dial(t.Context(), "cloud:10000")
			if err != nil {
				t.Fatal(err)
			}
			if got := c.Info().Transport; got != want || time.Since(start) != took {
				t.Fatalf("%s after %v, want %s after %v", got, time.Since(start), want, took)
			}
		}
		dial(link.WebSocket, 600*time.Millisecond)
		dial(link.WebSocket, 100*time.Millisecond) // first now
		time.Sleep(61 * time.Minute)
		quic.silent, quic.after = false, 100*time.Millisecond
		dial(link.QUIC, 100*time.Millisecond) // tried first again
		time.Sleep(time.Minute)
		quic.conn.err = &link.CloseError{Code: link.CloseTimeout}
		dial(link.WebSocket, 100*time.Millisecond) // QUIC only seemed to work
	})
}
