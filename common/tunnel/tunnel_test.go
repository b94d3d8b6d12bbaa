package tunnel_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
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

// system is two ends of a link with streams on it: the cloud opens, the edge accepts.
type system struct {
	t                   testing.TB
	cloud, edge         *tunnel.Mux
	cloudConn, edgeConn link.Conn
	beats, changes      chan message.Message // other messages that the cloud, and the edge, received
}

func newSystem(t testing.TB, config tunnel.Config, accept func(context.Context, string) (net.Conn, error), pipe linktest.PipeOptions) *system {
	t.Helper()
	w := &system{t: t, beats: make(chan message.Message, 100), changes: make(chan message.Message, 100)}
	w.edgeConn, w.cloudConn = linktest.Pipe(t, pipe)
	config.Peer = "edge1"
	w.cloud = tunnel.New(w.cloudConn, config)
	config.Peer, config.Accept, config.Edge = "the cloud", accept, true
	w.edge = tunnel.New(w.edgeConn, config)
	w.serve(w.cloudConn, w.cloud, w.beats)
	w.serve(w.edgeConn, w.edge, w.changes)
	return w
}

// serve dispatches messages, as a hub does.
func (w *system) serve(conn link.Conn, mux *tunnel.Mux, others chan<- message.Message) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		if err := mux.Run(ctx); err != nil {
			w.t.Error(err)
		}
	})
	all.Go(func() {
		defer cancel()
		for {
			m, err := conn.Receive(ctx)
			if err != nil {
				return
			}
			if m.Route.Kind != topic.KindStream {
				others <- m
				continue
			}
			if err := mux.Handle(ctx, m); err != nil {
				w.t.Error(err)
				return
			}
		}
	})
	w.t.Cleanup(func() { cancel(); all.Wait() })
}

func (w *system) open() *tunnel.Stream {
	w.t.Helper()
	s, err := w.cloud.Open(w.t.Context(), "kubelet")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = s.Close() })
	return s
}

// server accepts by a pair of connected sockets in memory, of which the test has the other end.
func server() (func(context.Context, string) (net.Conn, error), <-chan *half) {
	ends := make(chan *half, 1000)
	return func(context.Context, string) (net.Conn, error) {
		a, b := halves()
		ends <- b
		return a, nil
	}, ends
}

// half is one end of a connection that can be closed in one direction, as a TCP connection can.
type half struct {
	net.Conn
	in  *io.PipeReader
	out *io.PipeWriter
}

func halves() (*half, *half) {
	ar, bw := io.Pipe()
	br, aw := io.Pipe()
	c, d := net.Pipe() // for the end that a test does not use
	return &half{c, ar, aw}, &half{d, br, bw}
}

func (h *half) Read(b []byte) (int, error)  { return h.in.Read(b) }
func (h *half) Write(b []byte) (int, error) { return h.out.Write(b) }
func (h *half) CloseWrite() error           { return h.out.Close() }
func (h *half) Close() error {
	_, _, _ = h.Conn.Close(), h.in.Close(), h.out.Close()
	return nil
}

// echo sends received data back until the end.
func echo(context.Context, string) (net.Conn, error) {
	a, b := halves()
	go func() {
		_, _ = io.Copy(b, b)
		_ = b.CloseWrite()
	}()
	return a, nil
}

func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(b)
	return b
}

func TestStream_CarriesBothWaysAndEnds(t *testing.T) {
	for name, size := range map[string]int{"nothing": 0, "a byte": 1, "a chunk": 15 << 10, "more than a window": 3 << 20} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSystem(t, tunnel.Config{}, echo, linktest.PipeOptions{})
				s, sent := w.open(), noise(1, size)
				var got []byte
				var both sync.WaitGroup
				both.Go(func() {
					if _, err := s.Write(sent); err != nil {
						t.Error(err)
					}
					if err := s.CloseWrite(); err != nil {
						t.Error(err)
					}
				})
				got, err := io.ReadAll(s)
				both.Wait()
				if err != nil || !bytes.Equal(got, sent) {
					t.Errorf("got %d bytes back, want the %d that were sent: %v", len(got), size, err)
				}
				if _, err := s.Write([]byte("more")); err == nil {
					t.Error("a write after the end was taken")
				}
				synctest.Wait()
				if c, e := w.cloud.Len(), w.edge.Len(); c+e > 1 { // the opener has not closed yet
					t.Errorf("%d streams are left in the cloud, %d at the edge", c, e)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				synctest.Wait()
				if c, e := w.cloud.Len(), w.edge.Len(); c+e != 0 {
					t.Errorf("%d streams are left in the cloud, %d at the edge", c, e)
				}
			})
		})
	}
}

func TestOpen_Refused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t, tunnel.Config{}, func(_ context.Context, target string) (net.Conn, error) {
			return nil, fmt.Errorf("no listener for %s", target)
		}, linktest.PipeOptions{})
		_, err := w.cloud.Open(t.Context(), "kubelet")
		refused, ok := errors.AsType[*tunnel.Refused](err)
		if !ok || refused.Error() != "edge1: no listener for kubelet" {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		if c, e := w.cloud.Len(), w.edge.Len(); c+e != 0 {
			t.Errorf("%d streams are left in the cloud, %d at the edge", c, e)
		}
	})
}

func TestOpen_SilentPeerIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		w := newSystem(t, tunnel.Config{}, func(ctx context.Context, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, linktest.PipeOptions{})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if _, err := w.cloud.Open(ctx, "kubelet"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("it took %v", took)
		}
		time.Sleep(10 * time.Second) // the edge's own bound
		synctest.Wait()
		if c, e := w.cloud.Len(), w.edge.Len(); c+e != 0 {
			t.Errorf("%d streams are left in the cloud, %d at the edge", c, e)
		}
	})
}

// A peer answers a probe also when it takes no stream any more; one that is silent does not.
func TestProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t, tunnel.Config{}, echo, linktest.PipeOptions{})
		if err := w.cloud.Probe(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if c, e := w.cloud.Len(), w.edge.Len(); c+e != 0 {
			t.Errorf("%d streams are left in the cloud, %d at the edge", c, e)
		}
		silent := tunnel.New(discard{}, tunnel.Config{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := silent.Probe(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestOpen_Bound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t, tunnel.Config{MaxStreams: 3}, echo, linktest.PipeOptions{})
		for range 3 {
			w.open()
		}
		if _, err := w.cloud.Open(t.Context(), "kubelet"); !errors.Is(err, tunnel.ErrBusy) {
			t.Errorf("got %v", err)
		}
	})
}

// A reader that stalls holds its own stream back at its window, and no other one.
func TestStream_StalledReaderCostsItsOwnWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accept, ends := server()
		w := newSystem(t, tunnel.Config{}, accept, linktest.PipeOptions{})
		stalled := w.open()
		<-ends // without a read
		var wrote int
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				n, err := stalled.Write(make([]byte, 1<<10))
				wrote += n
				if err != nil {
					return
				}
			}
		}()
		synctest.Wait()
		lively := w.open()
		end := <-ends
		sent := noise(2, 2<<20)
		go func() {
			_, _ = lively.Write(sent)
			_ = lively.CloseWrite()
		}()
		if got, err := io.ReadAll(end); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("got %d bytes of %d: %v", len(got), len(sent), err)
		}
		if err := end.Close(); err != nil {
			t.Error(err)
		}
		if err := stalled.Close(); err != nil {
			t.Error(err)
		}
		<-done
		if most := 256<<10 + 64<<10; wrote > most { // the window, and the buffers of Splice
			t.Errorf("the stalled stream took %d bytes, want at most %d", wrote, most)
		}
	})
}

// A reader that stalls in mid-transfer for far longer than any timeout of the link, and than
// closeTimeout, gets all of it in the end, in either direction: neither the stream nor the link
// ends for that.
func TestStream_StalledReaderGetsAllInTheEnd(t *testing.T) {
	for name, ends := range map[string]func(cloud, edge net.Conn) (from, to net.Conn){
		"down": func(cloud, edge net.Conn) (net.Conn, net.Conn) { return cloud, edge },
		"up":   func(cloud, edge net.Conn) (net.Conn, net.Conn) { return edge, cloud },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				accept, accepted := server()
				w := newSystem(t, tunnel.Config{}, accept, linktest.PipeOptions{})
				from, to := ends(w.open(), <-accepted)
				sent := noise(3, 2<<20)
				go func() {
					_, _ = from.Write(sent)
					_ = from.(interface{ CloseWrite() error }).CloseWrite()
				}()
				first := make([]byte, 100<<10)
				if _, err := io.ReadFull(to, first); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour)
				rest, err := io.ReadAll(to)
				if got := append(first, rest...); err != nil || !bytes.Equal(got, sent) {
					t.Errorf("got %d bytes of %d: %v", len(got), len(sent), err)
				}
				if err := errors.Join(w.cloudConn.Err(), w.edgeConn.Err()); err != nil {
					t.Errorf("the link has ended: %v", err)
				}
			})
		})
	}
}

func TestStream_Deadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accept, ends := server()
		w := newSystem(t, tunnel.Config{}, accept, linktest.PipeOptions{})
		s := w.open()
		end := <-ends
		began := time.Now()
		if err := s.SetReadDeadline(began.Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("read: %v after %v", err, time.Since(began))
		}
		if err := s.SetDeadline(time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(time.Second)
			_ = s.SetDeadline(time.Now()) // changes during a wait
		}()
		_, err := s.Write(make([]byte, 1<<20)) // more than the window
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != 2*time.Second {
			t.Errorf("write: %v after %v", err, time.Since(began))
		}
		// A deadline that is over does no harm once it is moved.
		if err := s.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = end.Write([]byte("ok")) }()
		b := make([]byte, 2)
		if _, err := io.ReadFull(s, b); err != nil || string(b) != "ok" {
			t.Errorf("read %q: %v", b, err)
		}
	})
}

// The end of the link ends every stream at both ends, with an error that names it.
func TestStream_LinkEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accept, ends := server()
		w := newSystem(t, tunnel.Config{}, accept, linktest.PipeOptions{})
		s := w.open()
		end := <-ends
		if _, err := end.Write([]byte("last words")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		_ = w.edgeConn.Close(link.CloseShutdown, "the edge stops")
		synctest.Wait()
		got, err := io.ReadAll(s)
		if string(got) != "last words" || err == nil || !strings.Contains(err.Error(), "the link to edge1 ended") {
			t.Errorf("read %q, %v", got, err)
		}
		if _, err := s.Write([]byte("x")); err == nil || !strings.Contains(err.Error(), "the link to edge1 ended") {
			t.Errorf("write: %v", err)
		}
		if _, err := end.Read(make([]byte, 1)); err == nil {
			t.Error("the connection at the edge goes on")
		}
		if _, err := w.cloud.Open(t.Context(), "kubelet"); err == nil || !strings.Contains(err.Error(), "the link to edge1 ended") {
			t.Errorf("open: %v", err)
		}
	})
}

// While bulk copies run both ways over 256 kbit/s, a heartbeat and the change of a pod
// overtake all of them but the piece that is being written. Bytes are counted, so the figure
// is that of the protocol and of no machine; data that the kernel and the network have taken
// already can't be overtaken.
func TestTunnel_13_BulkDelaysOthersByOneChunk(t *testing.T) {
	const (
		rate = 32 << 10 // bytes a second
		most = 17 << 10 // a chunk of 15 KiB in a frame of 16, and the measured message
	)
	synctest.Test(t, func(t *testing.T) {
		up, down := &slow{rate: rate}, &slow{rate: rate}
		w := newSystem(t, tunnel.Config{}, func(context.Context, string) (net.Conn, error) {
			a, b := halves()
			go func() { _, _ = io.Copy(b, endless{}) }()
			go func() { _, _ = io.Copy(io.Discard, b) }()
			return a, nil
		}, linktest.PipeOptions{
			WrapEdge:  func(c net.Conn) net.Conn { up.Conn = c; return up },
			WrapCloud: func(c net.Conn) net.Conn { down.Conn = c; return down },
		})
		for range 3 {
			s := w.open()
			go func() { _, _ = io.Copy(io.Discard, s) }()
			go func() { _, _ = io.Copy(s, endless{}) }()
		}
		time.Sleep(10 * time.Second)
		for i := range 20 {
			for what, way := range map[string]struct {
				from link.Conn
				on   *slow
				come chan message.Message
				m    message.Message
			}{
				"a heartbeat":         {w.edgeConn, up, w.beats, topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{Sequence: uint64(i)})},
				"the change of a pod": {w.cloudConn, down, w.changes, topic.State.New(message.Resource{}, &topicpb.State{})},
			} {
				before, began := way.on.written.Load(), time.Now()
				if err := way.from.Send(t.Context(), way.m); err != nil {
					t.Fatal(err)
				}
				<-way.come
				if n := way.on.written.Load() - before; n > most {
					t.Errorf("%s came after %d bytes of a bulk copy, want at most %d", what, n, most)
				}
				if took := time.Since(began); took > most*time.Second/rate {
					t.Errorf("%s took %v", what, took)
				}
			}
			time.Sleep(time.Second/3 + time.Duration(i)*7*time.Millisecond)
		}
		if u, d := up.written.Load(), down.written.Load(); u < rate || d < rate {
			t.Errorf("the copies moved %d and %d bytes", u, d)
		}
	})
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// slow is a connection that takes so many bytes a second.
type slow struct {
	net.Conn
	rate    int
	written atomic.Int64
}

func (s *slow) Write(b []byte) (int, error) {
	time.Sleep(time.Duration(len(b)) * time.Second / time.Duration(s.rate))
	n, err := s.Conn.Write(b)
	s.written.Add(int64(n))
	return n, err
}

// 500 concurrent streams keep their bytes apart, and free everything.
func TestTunnel_14_500StreamsKeepTheirBytesApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSystem(t, tunnel.Config{}, echo, linktest.PipeOptions{})
		synctest.Wait()
		before := runtime.NumGoroutine()
		var all sync.WaitGroup
		for i := range 500 {
			all.Go(func() {
				s, err := w.cloud.Open(t.Context(), "kubelet")
				if err != nil {
					t.Error(err)
					return
				}
				defer s.Close()
				sent := noise(uint64(i), 40_000)
				go func() {
					_, _ = s.Write(sent)
					_ = s.CloseWrite()
				}()
				got, err := io.ReadAll(s)
				if err != nil || sha256.Sum256(got) != sha256.Sum256(sent) {
					t.Errorf("stream %d: %d bytes: %v", i, len(got), err)
				}
			})
		}
		all.Wait()
		synctest.Wait()
		if c, e := w.cloud.Len(), w.edge.Len(); c+e != 0 {
			t.Errorf("%d streams are left in the cloud, %d at the edge", c, e)
		}
		if after := runtime.NumGoroutine(); after > before {
			t.Errorf("%d goroutines, there were %d", after, before)
		}
	})
}

// Messages against the protocol end the link; late ones don't.
func TestHandle_BadPeer(t *testing.T) {
	open := topic.StreamOpen.New(message.Resource{}, &topicpb.StreamOpen{Id: 1, Window: 100})
	data := func(id uint64, n int) message.Message {
		return topic.StreamData.New(message.Resource{}, &topicpb.StreamData{Id: id, Data: make([]byte, n)})
	}
	fin := topic.StreamData.New(message.Resource{}, &topicpb.StreamData{Id: 1, Fin: true})
	closed := topic.StreamClose.New(message.Resource{}, &topicpb.StreamClose{Id: 1})
	for name, test := range map[string]struct {
		says []message.Message
		bad  bool
	}{
		"late data":         {says: []message.Message{data(7, 10)}},
		"late close":        {says: []message.Message{open, closed, closed}},
		"late window":       {says: []message.Message{topic.StreamWindow.New(message.Resource{}, &topicpb.StreamWindow{Id: 9, Bytes: 5})}},
		"closed, then open": {says: []message.Message{closed, open}},
		"beyond the window": {says: []message.Message{open, data(1, 256<<10+1)}, bad: true},
		"after the end":     {says: []message.Message{open, fin, data(1, 1)}, bad: true},
		"opened twice":      {says: []message.Message{open, open}, bad: true},
		"opened again":      {says: []message.Message{open, closed, open}, bad: true},
		"window of nothing": {says: []message.Message{open, topic.StreamWindow.New(message.Resource{}, &topicpb.StreamWindow{Id: 1})}, bad: true},
		"another topic":     {says: []message.Message{topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{})}, bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				accept, ends := server()
				mux := tunnel.New(discard{}, tunnel.Config{Edge: true, Accept: accept})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- mux.Run(ctx) }()
				var err error
				for _, m := range test.says {
					if err = mux.Handle(ctx, m); err != nil {
						break
					}
				}
				if end, ok := errors.AsType[*link.CloseError](err); ok != test.bad || ok && end.Code != link.CloseProtocol {
					t.Errorf("got %v", err)
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				if name == "closed, then open" && len(ends) > 0 {
					t.Error("it was dialled for a stream that had ended")
				}
			})
		})
	}
}

// discard accepts and drops everything.
type discard struct{}

func (discard) Send(context.Context, message.Message) error { return nil }

// Data of an accepted stream may arrive before the acceptance: the two are of
// different classes.
func TestOpen_DataIsAnAcceptanceToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux := tunnel.New(discard{}, tunnel.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- mux.Run(ctx) }()
		opened := make(chan *tunnel.Stream)
		go func() {
			s, err := mux.Open(ctx, "kubelet")
			if err != nil {
				t.Error(err)
			}
			opened <- s
		}()
		synctest.Wait()
		for _, m := range []message.Message{
			topic.StreamData.New(message.Resource{}, &topicpb.StreamData{Id: 1, Data: []byte("early"), Fin: true}),
			topic.StreamWindow.New(message.Resource{}, &topicpb.StreamWindow{Id: 1, Bytes: 10}),
		} {
			if err := mux.Handle(ctx, m); err != nil {
				t.Error(err)
			}
		}
		if got, err := io.ReadAll(<-opened); err != nil || string(got) != "early" {
			t.Errorf("got %q, %v", got, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
