// Package hostile is a device that implements the protocol of the link itself, with a valid
// certificate of its node, and violates it as edgecore never does: it sends any message of a test,
// and reads only while the test lets it.
//
// It owns the link that it dialled. It keeps to no bound of edgecore's. Its methods may be called
// from any goroutine.
package hostile

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/quiclink"
	"github.com/skerry-io/skerry/common/link/wslink"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// Config sets the device's identity and the address to dial.
type Config struct {
	Transport link.Transport
	Address   string      // HOST:PORT of cloudcore's listener of that transport
	TLS       *tls.Config // with the certificate of the node, and the device's trusted CAs
	Epoch     uint64      // of the session, as in its Hello
	Machine   string      // the digest of its hardware, as in its Hello
	Dialer    link.Dialer // if set, dials Address in place of Transport's own
}

// Device is an open session of a node. It keeps all received messages, without a bound: a test ends
// before that matters.
type Device struct {
	conn   link.Conn
	writes atomic.Uint64 // the number of the last Write

	mu      sync.Mutex
	changed chan struct{} // closed and renewed with each message that came
	results map[uint64]*topicpb.WriteResult
	answers map[message.ID]*topicpb.APIResponse
	streams []*topicpb.StreamOpen
	closed  []*topicpb.StreamClose
	refused map[uint64]*topicpb.Refusal // interests
	synced  map[uint64]bool
	acked   uint64
	paused  chan struct{} // not nil: reading pauses until it is closed
}

// Dial opens a link and a session on it. ctx bounds the session too.
func Dial(ctx context.Context, c Config) (*Device, error) {
	dialer := c.Dialer
	if dialer == nil {
		var err error
		if dialer, err = NewDialer(c.Transport, c.TLS); err != nil {
			return nil, err
		}
	}
	conn, err := dialer.Dial(ctx, c.Address)
	if err != nil {
		return nil, err
	}
	d := &Device{
		conn: conn, changed: make(chan struct{}), results: map[uint64]*topicpb.WriteResult{}, answers: map[message.ID]*topicpb.APIResponse{},
		refused: map[uint64]*topicpb.Refusal{}, synced: map[uint64]bool{},
	}
	if err := d.begin(ctx, c); err != nil {
		d.Close()
		return nil, err
	}
	go d.read(ctx)
	return d, nil
}

// NewDialer makes a dialer of one transport.
func NewDialer(transport link.Transport, secure *tls.Config) (link.Dialer, error) {
	bounds := link.Default()
	bounds.PeerAssembly, bounds.IdleTimeout = 1<<30, 10*time.Minute
	if transport == link.QUIC {
		return quiclink.NewDialer(quiclink.DialConfig{Link: bounds, TLS: secure, Table: topic.NewTable()})
	}
	small := func(conn net.Conn) net.Conn { // a device that stops reading holds little in its kernel
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetReadBuffer(16 << 10)
		}
		return conn
	}
	return wslink.NewDialer(wslink.DialConfig{Link: bounds, TLS: secure, Table: topic.NewTable(), Wrap: small})
}

// begin sends Hello, and waits for Welcome.
func (d *Device) begin(ctx context.Context, c Config) error {
	// It sends no heartbeats, and on a busy machine a test takes minutes: cloudcore allows four
	// times this silence.
	const keepalive = 2 * time.Minute
	hello := &topicpb.Hello{Protocol: topic.Protocol, Version: "hostile", BootId: "hostile", Machine: c.Machine, Epoch: c.Epoch, KeepaliveMillis: keepalive.Milliseconds()}
	if err := d.conn.Send(ctx, topic.Hello.New(message.Resource{}, hello)); err != nil {
		return fmt.Errorf("saying Hello: %w", err)
	}
	m, err := d.conn.Receive(ctx)
	if err != nil {
		return fmt.Errorf("waiting for Welcome: %w", err)
	}
	if m.Key() != topic.Welcome.Key() {
		return fmt.Errorf("got %s, and not Welcome", m.Key())
	}
	return nil
}

func (d *Device) read(ctx context.Context) {
	for {
		d.mu.Lock()
		paused := d.paused
		d.mu.Unlock()
		if paused != nil {
			select {
			case <-paused:
			case <-d.conn.Done():
				return
			}
		}
		m, err := d.conn.Receive(ctx)
		if err != nil {
			return
		}
		d.take(m)
		if _, ok := m.Content.(*topicpb.State); ok {
			d.mu.Lock()
			ack := d.acked
			d.mu.Unlock()
			_ = d.conn.Send(ctx, topic.StateAck.New(message.Resource{}, &topicpb.StateAck{Sequence: ack}))
		}
	}
}

// Interests are those that were refused, with the reason, and those whose set has come.
func (d *Device) Interests() (refused map[uint64]*topicpb.Refusal, synced map[uint64]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.refused), maps.Clone(d.synced)
}

func (d *Device) take(m message.Message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch content := m.Content.(type) {
	case *topicpb.WriteResult:
		d.results[content.GetId()] = content
	case *topicpb.APIResponse:
		d.answers[m.Header.ParentID] = content
	case *topicpb.State:
		for _, r := range content.GetRefused() {
			d.refused[r.GetInterest()] = r
		}
		for _, id := range content.GetSynced() {
			d.synced[id] = true
		}
		d.acked = max(d.acked, content.GetSequence())
	case *topicpb.StreamOpen:
		d.streams = append(d.streams, content)
	case *topicpb.StreamClose:
		d.closed = append(d.closed, content)
	}
	close(d.changed)
	d.changed = make(chan struct{})
}

// Pause stops the device's reads until resume is called, so that all windows of its link fill up.
func (d *Device) Pause() (resume func()) {
	paused := make(chan struct{})
	d.mu.Lock()
	d.paused = paused
	d.mu.Unlock()
	return sync.OnceFunc(func() {
		d.mu.Lock()
		d.paused = nil
		d.mu.Unlock()
		close(paused)
	})
}

// Send sends any message.
func (d *Device) Send(ctx context.Context, m message.Message) error { return d.conn.Send(ctx, m) }

// Post sends a write under a number of its own, which it returns.
func (d *Device) Post(ctx context.Context, t message.Topic[*topicpb.Write], w *topicpb.Write) (uint64, error) {
	w.Id = d.writes.Add(1)
	return w.Id, d.conn.Send(ctx, t.New(message.Resource{Namespace: w.GetNamespace(), Name: w.GetName()}, w))
}

// Write sends a write and waits for how it ended.
func (d *Device) Write(ctx context.Context, t message.Topic[*topicpb.Write], w *topicpb.Write) (*topicpb.WriteResult, error) {
	id, err := d.Post(ctx, t, w)
	if err != nil {
		return nil, err
	}
	return await(ctx, d, func() *topicpb.WriteResult { return d.results[id] })
}

// Ask makes a request of kube-apiserver, and waits for its answer.
func (d *Device) Ask(ctx context.Context, q *topicpb.APIRequest) (*topicpb.APIResponse, error) {
	m := topic.APIRequest.New(message.Resource{}, q)
	if err := d.conn.Send(ctx, m); err != nil {
		return nil, err
	}
	return await(ctx, d, func() *topicpb.APIResponse { return d.answers[m.Header.ID] })
}

// await waits until find, which is called with d.mu held, finds something.
func await[T any](ctx context.Context, d *Device, find func() *T) (*T, error) {
	for {
		d.mu.Lock()
		found, changed := find(), d.changed
		d.mu.Unlock()
		if found != nil {
			return found, nil
		}
		select {
		case <-changed:
		case <-d.conn.Done():
			return nil, errors.Join(errors.New("the link ended"), d.conn.Err())
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Results is how many writes were answered.
func (d *Device) Results() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.results)
}

// Streams are the streams that cloudcore opened, and Refused those that it closed.
func (d *Device) Streams() (opened []*topicpb.StreamOpen, closed []*topicpb.StreamClose) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.streams, d.closed
}

// Done is closed when the link has ended; Err then gives the reason.
func (d *Device) Done() <-chan struct{} { return d.conn.Done() }

// Err gives the reason the link ended.
func (d *Device) Err() error { return d.conn.Err() }

// Close ends the link.
func (d *Device) Close() { _ = d.conn.Close(link.CloseShutdown, "enough") }

// Forget drops the state of all streams.
func (d *Device) Forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.streams, d.closed = nil, nil
}

// Transport is the link's transport.
func (d *Device) Transport() link.Transport { return d.conn.Info().Transport }
