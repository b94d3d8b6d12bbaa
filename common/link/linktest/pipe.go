// Package linktest holds the contract of link.Conn that every transport passes, and tools for tests
// of links: links in memory, certificates, and connections that stall, swallow or slow down.
//
// It is for tests only. Everything it makes ends with the test it was made for.
package linktest

import (
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/internal/deadline"
	"github.com/skerry-io/skerry/common/topic"
)

// Memory is the transport of Pipe.
const Memory link.Transport = "memory"

// PipeOptions describe the links of Pipe.
type PipeOptions struct {
	Config link.Config       // the zero value: link.Default
	Other  link.Config       // of the cloud's end; the zero value: as Config
	Edge   *x509.Certificate // of the edge, as the cloud sees it; see Authority.Node
	Cloud  *x509.Certificate // of the cloud, as the edge sees it
	// WrapEdge and WrapCloud, if set, wrap each end's connection, to slow it down or break it.
	WrapEdge, WrapCloud func(net.Conn) net.Conn
}

// Pipe returns the two ends of a link in memory: everything but TLS is real. It works inside a
// synctest bubble. Both ends are closed when the test ends.
func Pipe(t testing.TB, o PipeOptions) (edge, cloud link.Conn) {
	t.Helper()
	if o.Config == (link.Config{}) {
		o.Config = link.Default()
	}
	if o.Other == (link.Config{}) {
		o.Other = o.Config
	}
	if err := errors.Join(o.Config.Validate(), o.Other.Validate()); err != nil {
		t.Fatal(err)
	}
	a, b := net.Pipe()
	if o.WrapEdge != nil {
		a = o.WrapEdge(a)
	}
	if o.WrapCloud != nil {
		b = o.WrapCloud(b)
	}
	return startPipe(t, a, true, o.Config, o.Other, o.Cloud), startPipe(t, b, false, o.Other, o.Config, o.Edge)
}

func startPipe(t testing.TB, c net.Conn, dialed bool, config, other link.Config, peer *x509.Certificate) link.Conn {
	t.Helper()
	p := &pipe{conn: deadline.Wrap(c), config: config, dialed: dialed, peerIdle: other.IdleTimeout}
	if err := p.conn.Arm(config.IdleTimeout); err != nil {
		t.Fatal(err)
	}
	end := link.Start(p, link.NewCodec(topic.NewTable(), config), config, link.Info{
		Transport: Memory, Local: c.LocalAddr(), Remote: c.RemoteAddr(), Peer: peer, Since: time.Now(),
	})
	t.Cleanup(func() {
		if err := end.Close(link.CloseShutdown, "the test ended"); err != nil {
			t.Error(err)
		}
	})
	return end
}

// A pipe carries records: a byte for the kind, a length of two bytes, data.
const (
	recordFrames    = 'f'
	recordKeepalive = 'k'
	recordClose     = 'c' // two bytes of code, and the reason
)

// pipe is a link.Carrier over a net.Conn.
type pipe struct {
	conn     *deadline.Conn
	config   link.Config
	dialed   bool
	peerIdle time.Duration

	left int // bytes of the record that Read is in; owned by Serve
}

func (p *pipe) Traits() link.Traits {
	return link.Traits{Batch: 4 << 10, Dialed: p.dialed, PeerIdle: p.peerIdle}
}

func (p *pipe) Serve(sink link.Sink) error { return sink.Read(&pipeReader{p, sink}) }

func (p *pipe) Write(_ topic.Class, frames []byte) error { return p.record(recordFrames, frames) }
func (p *pipe) Keepalive() error                         { return p.record(recordKeepalive, nil) }
func (p *pipe) LastHeard() time.Time                     { return p.conn.Heard() }

func (p *pipe) record(kind byte, data []byte) error {
	b := make([]byte, 0, 3+len(data))
	b = append(b, kind)
	b = binary.BigEndian.AppendUint16(b, uint16(len(data)))
	_, err := p.conn.Write(append(b, data...))
	return err
}

func (p *pipe) Stop(*link.CloseError) {
	now := time.Now()
	_ = p.conn.Final(now, now.Add(p.config.CloseTimeout)) // a pipe that can't be set deadlines is closed already
}

func (p *pipe) Close(why *link.CloseError) {
	var peer sync.WaitGroup
	if !why.Remote {
		end := time.Now().Add(p.config.CloseTimeout)
		_ = p.conn.Final(end, end)
		// Read until the peer ends too, as the websocket does: a pipe that is closed before fails
		// the peer's own writes, and where that is seen before the record is, the peer takes it for
		// a network that ended. Two ends that close at once read each other's record.
		peer.Go(func() {
			if _, err := io.Copy(io.Discard, &pipeReader{p, ignore{}}); !closed(err) {
				_, _ = io.Copy(io.Discard, p.conn) // Serve was interrupted within a record
			}
		})
		_ = p.record(recordClose, append(binary.BigEndian.AppendUint16(nil, uint16(why.Code)), why.Reason...)) // the peer may be gone
	}
	peer.Wait()
	_ = p.conn.Close()
}

// closed reports whether err is the peer's record of why it closes.
func closed(err error) bool {
	_, ok := errors.AsType[*link.CloseError](err)
	return ok
}

// pipeReader is the stream of frames within the records.
type pipeReader struct {
	*pipe
	sink link.Sink
}

func (r *pipeReader) Read(b []byte) (int, error) {
	for r.left == 0 {
		var head [3]byte
		if _, err := io.ReadFull(r.conn, head[:]); err != nil {
			return 0, err
		}
		n := int(binary.BigEndian.Uint16(head[1:]))
		switch head[0] {
		case recordFrames:
			r.left = n
		case recordKeepalive:
			r.sink.Alive()
		case recordClose:
			data := make([]byte, n)
			if _, err := io.ReadFull(r.conn, data); err != nil || n < 2 {
				return 0, io.ErrUnexpectedEOF
			}
			return 0, &link.CloseError{Code: link.CloseCode(binary.BigEndian.Uint16(data)), Reason: string(data[2:]), Remote: true}
		default:
			return 0, fmt.Errorf("record of kind %q", head[0])
		}
	}
	n, err := r.conn.Read(b[:min(len(b), r.left)])
	r.left -= n
	return n, err
}

// PipeWire is a Wire in memory.
func PipeWire(t *testing.T, config link.Config) Wire {
	t.Helper()
	a, b := net.Pipe()
	edge := &pipe{conn: deadline.Wrap(a), config: config}
	t.Cleanup(func() { _ = a.Close() })
	cloud := startPipe(t, b, false, config, config, nil)
	type reason struct {
		code link.CloseCode
		text string
	}
	reasons := make(chan reason, 1)
	go func() {
		defer a.Close() // the cloud waits for that
		_, err := io.Copy(io.Discard, &pipeReader{edge, ignore{}})
		if why, ok := errors.AsType[*link.CloseError](err); ok {
			reasons <- reason{why.Code, why.Reason}
		}
		close(reasons)
	}()
	return Wire{
		Cloud: cloud,
		Write: func(frames []byte) error {
			err := edge.Write(topic.Bulk, frames)
			if errors.Is(err, io.ErrClosedPipe) {
				err = nil // the cloud has seen enough already
			}
			return err
		},
		Closed: func() (link.CloseCode, string) { c := <-reasons; return c.code, c.text },
	}
}

// ignore is a link.Sink for a peer that only reads.
type ignore struct{}

func (ignore) Read(io.Reader) error { return nil }
func (ignore) Begin(io.Reader) (func() error, func(error)) {
	return func() error { return io.EOF }, func(error) {}
}
func (ignore) Alive()    {}
func (ignore) End(error) {}
