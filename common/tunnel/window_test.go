package tunnel_test

import (
	"context"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/common/tunnel"
)

// A modem is a path with a queue of 64 KiB before its bottleneck, as cheap ones have: data in there
// can't be overtaken. One goroutine writes to it.
type modem struct {
	net.Conn
	rate    int // bytes a second
	delay   time.Duration
	free    time.Time // when all that is queued has left
	air     chan parcel
	closed  chan struct{}
	once    sync.Once
	arrived atomic.Int64
}

type parcel struct {
	data []byte
	at   time.Time
}

func newModem(c net.Conn, rate int, delay time.Duration) *modem {
	m := &modem{Conn: c, rate: rate, delay: delay, free: time.Now(), air: make(chan parcel, 1<<12), closed: make(chan struct{})}
	go func() {
		for {
			var p parcel
			select {
			case p = <-m.air:
			case <-m.closed:
				return
			}
			time.Sleep(time.Until(p.at))
			if _, err := m.Conn.Write(p.data); err != nil {
				return
			}
			m.arrived.Add(int64(len(p.data)))
		}
	}()
	return m
}

func (m *modem) Close() error {
	m.once.Do(func() { close(m.closed) })
	return m.Conn.Close()
}

func (m *modem) Write(b []byte) (int, error) {
	const queue = 64 << 10
	lasts := func(n int) time.Duration { return time.Duration(n) * time.Second / time.Duration(m.rate) }
	if over := time.Until(m.free) + lasts(len(b)) - lasts(queue); over > 0 {
		time.Sleep(over)
	}
	if now := time.Now(); m.free.Before(now) {
		m.free = now
	}
	m.free = m.free.Add(lasts(len(b)))
	m.air <- parcel{slices.Clone(b), m.free.Add(m.delay)}
	return len(b), nil
}

// A bulk copy puts no more into the path than the path needs to be full: others wait for about a
// chunk where it is thin, and the copy is no slower for it where it is long or wide.
func TestTunnel_13_QueuesOnThePathStayShort(t *testing.T) {
	for name, c := range map[string]struct {
		rate  int           // bytes a second
		delay time.Duration // one way
		late  time.Duration // that others may be, on top of the delay
		full  float64       // how much of the rate the copy has, at least
	}{
		"256 kbit/s":                     {32_000, 10 * time.Millisecond, 17 << 10 * time.Second / 32_000, 0.9},
		"256 kbit/s by satellite":        {32_000, 300 * time.Millisecond, 33 << 10 * time.Second / 32_000, 0.6},
		"8 Mbit/s over 200 ms":           {1_000_000, 100 * time.Millisecond, 100 * time.Millisecond, 0.6},
		"100 Mbit/s on the next machine": {12_500_000, 100 * time.Microsecond, 25 * time.Millisecond, 0.8},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var up, down *modem
				w := newSystem(t, tunnel.Config{}, func(context.Context, string) (net.Conn, error) {
					a, b := halves()
					go func() { _, _ = io.Copy(io.Discard, b) }()
					return a, nil
				}, linktest.PipeOptions{
					WrapEdge:  func(conn net.Conn) net.Conn { up = newModem(conn, 12_500_000, c.delay); return up },
					WrapCloud: func(conn net.Conn) net.Conn { down = newModem(conn, c.rate, c.delay); return down },
				})
				s := w.open()
				if _, err := s.Write([]byte("hello")); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Second)
				go func() { _, _ = io.Copy(s, endless{}) }()
				time.Sleep(10 * time.Second)
				before := down.arrived.Load()
				began := time.Now()
				var worst time.Duration
				for range 20 {
					sent := time.Now()
					if err := w.cloudConn.Send(t.Context(), topic.State.New(message.Resource{}, &topicpb.State{})); err != nil {
						t.Fatal(err)
					}
					<-w.changes
					worst = max(worst, time.Since(sent)-c.delay)
					time.Sleep(170 * time.Millisecond)
				}
				share := float64(down.arrived.Load()-before) / time.Since(began).Seconds() / float64(c.rate)
				if worst > c.late {
					t.Errorf("a pod's change was %v late, want at most %v", worst, c.late)
				}
				if share < c.full {
					t.Errorf("the copy had %.2f of the rate, want %.2f", share, c.full)
				}
				_ = w.cloudConn.Close(link.CloseShutdown, "the test is over")
				time.Sleep(time.Minute) // until the modems are empty
			})
		})
	}
}
