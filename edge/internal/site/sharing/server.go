package sharing

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"k8s.io/klog/v2"
)

// Bounds of this device as a server; docs/site.md has them. Above them a device gets the answer
// busy, or its connection ends: it asks another one, or takes the program over its link.
const (
	// maxTransfers is how many devices get bytes at once.
	maxTransfers = 4
	// sendRate is how many bytes a second all devices together get: a third remains of a network of
	// 100 Mbit/s. A piece goes at once.
	sendRate = 8 << 20
	piece    = 32 << 10
	// allowance is how many bytes one device gets in a day: some versions, each of them tried
	// again.
	allowance = 2 << 30
	// asksRate bounds the requests of a connection, in a second.
	asksRate, asksBurst = 20, 40
	// patience is how long a device may take to send its next request, and to receive a piece.
	patience = 10 * time.Second
	// longest is how long a connection may last.
	longest = 30 * time.Minute
	// maxDevices bounds the devices whose allowance is remembered: more than a site has.
	maxDevices = 256
)

// State is how many bytes of programs this device has sent to others of its site and received from
// them, since edgecore started.
type State struct {
	Sent     int64 `json:"sentBytes"`
	Received int64 `json:"receivedBytes"`
}

// Program is a program of this device.
type Program interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

// Server has the programs of this device for others.
type Server struct {
	open      func(digest string) (Program, error)
	limit     *rate.Limiter
	transfers chan struct{}
	sent      atomic.Int64
	counter   prometheus.Counter

	mu    sync.Mutex
	given map[string]*rate.Limiter // by device
}

// NewServer makes a Server. open returns a program by its digest, or an error where this device
// does not have it; it is called by any goroutine.
func NewServer(open func(digest string) (Program, error)) *Server {
	return &Server{
		open: open, limit: rate.NewLimiter(sendRate, piece), transfers: make(chan struct{}, maxTransfers), given: map[string]*rate.Limiter{},
		counter: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "skerry", Subsystem: "sharing", Name: "sent_bytes_total", Help: "Bytes of programs sent to devices of the site.",
		}),
	}
}

// Metrics is for the registry of a program.
func (s *Server) Metrics() prometheus.Collector { return s.counter }

// Sent returns how many bytes other devices have had since edgecore started.
func (s *Server) Sent() int64 { return s.sent.Load() }

// Serve answers a device's requests until its connection ends, or is above the bounds.
func (s *Server) Serve(ctx context.Context, node string, conn Conn) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	t := &transfer{server: s, node: node, conn: conn, asks: rate.NewLimiter(asksRate, asksBurst)}
	defer t.close()
	var err error
	for err == nil {
		err = t.next(ctx)
	}
	if t.bytes > 0 {
		klog.FromContext(ctx).V(2).Info("Sent a program to a device of the site", "device", node, "bytes", t.bytes, "end", err.Error())
	}
}

// transfer is one connection.
type transfer struct {
	server  *Server
	node    string
	conn    Conn
	asks    *rate.Limiter
	program Program
	digest  [digestSize]byte // of program
	holds   bool             // it is one of maxTransfers
	bytes   int64
}

func (t *transfer) close() {
	if t.program != nil {
		_ = t.program.Close()
	}
	if t.holds {
		<-t.server.transfers
	}
	_ = t.conn.Close()
}

var errTooOften = errors.New("it asks too often")

// next answers one request. The program stays open between two of them: its file may be replaced.
func (t *transfer) next(ctx context.Context) error {
	if err := t.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	r, err := readRequest(t.conn)
	if err != nil {
		return err
	}
	if !t.asks.Allow() {
		return errTooOften
	}
	if t.program == nil || t.digest != r.digest {
		if t.program != nil {
			_ = t.program.Close()
		}
		if t.program, err = t.server.open(text(r.digest)); err != nil {
			t.program = nil
			return t.write(answer{code: notHere}.append(nil))
		}
		t.digest = r.digest
	}
	size := t.program.Size()
	n := min(int64(r.length), max(0, size-int64(r.offset)))
	if n == 0 {
		return t.write(answer{code: hasIt, size: uint64(size)}.append(nil))
	}
	if !t.admit(n) {
		return t.write(answer{code: busy}.append(nil))
	}
	return t.send(ctx, int64(r.offset), n, size)
}

// admit reports whether a device may have so many more bytes.
func (t *transfer) admit(n int64) bool {
	if !t.holds {
		select {
		case t.server.transfers <- struct{}{}:
			t.holds = true
		default:
			return false
		}
	}
	return t.server.allowed(t.node).AllowN(time.Now(), int(n))
}

// allowed is what a device may still have today.
func (s *Server) allowed(node string) *rate.Limiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.given[node] == nil {
		if len(s.given) >= maxDevices { // of members that have left; contact admits no others
			clear(s.given)
		}
		s.given[node] = rate.NewLimiter(rate.Limit(float64(allowance)/(24*time.Hour).Seconds()), allowance)
	}
	return s.given[node]
}

func (t *transfer) send(ctx context.Context, offset, n, size int64) error {
	buffer := make([]byte, answerSize, answerSize+min(n, piece))
	answer{code: hasIt, size: uint64(size), length: uint32(n)}.append(buffer[:0])
	for head := answerSize; n > 0; head = 0 {
		part := min(n, piece)
		if err := t.server.limit.WaitN(ctx, int(part)); err != nil {
			return err
		}
		buffer = buffer[:head+int(part)]
		if got, err := t.program.ReadAt(buffer[head:], offset); got < int(part) {
			return err
		}
		if err := t.write(buffer); err != nil {
			return err
		}
		offset, n = offset+part, n-part
		t.bytes += part
		t.server.sent.Add(part)
		t.server.counter.Add(float64(part))
	}
	return nil
}

func (t *transfer) write(b []byte) error {
	if err := t.conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err := t.conn.Write(b)
	return err
}
