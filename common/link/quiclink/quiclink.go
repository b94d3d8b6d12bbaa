// Package quiclink carries links over QUIC (RFC 9000), each class on a stream of its own, so that a
// packet that is lost delays one class only.
//
// It owns the UDP sockets, the handshake and the streams. It refuses peers without a verified
// certificate, other versions of the protocol (by ALPN), and more links than its bound. Listener
// and Dialer may be used by many goroutines at once.
package quiclink

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
)

// protocol is the ALPN protocol (RFC 7301).
func protocol() string { return "skerry/" + strconv.Itoa(link.Framing) }

// A stream's window begins small and grows with the path's need: 512 KiB carry 40 Mbit/s over 100
// ms. That of the connection is always the sum of its streams' largest windows: unread data of one
// class must never take the window from the others, for one of which all may wait. A window
// costs memory only while received data waits.
const (
	streamWindow    = 64 << 10
	maxStreamWindow = 512 << 10
	connWindow      = topic.Classes * maxStreamWindow
)

func quicConfig(c link.Config) *quic.Config {
	return &quic.Config{
		HandshakeIdleTimeout:       c.HandshakeTimeout / 2, // the whole handshake may take twice this
		MaxIdleTimeout:             c.IdleTimeout,
		InitialStreamReceiveWindow: streamWindow, MaxStreamReceiveWindow: maxStreamWindow,
		InitialConnectionReceiveWindow: connWindow, MaxConnectionReceiveWindow: connWindow,
		MaxIncomingStreams: -1, MaxIncomingUniStreams: topic.Classes,
		// Looking for larger packets (RFC 8899) costs some 8 KB at each connect, and gains a tenth
		// of a header: a device reconnects more often than it sends megabytes. 1280 bytes pass
		// wherever IPv6 does.
		DisablePathMTUDiscovery: true,
	}
}

// carrier is a link.Carrier on a QUIC connection.
type carrier struct {
	conn     *quic.Conn
	config   link.Config
	dialed   bool
	released func() // called when everything is closed

	streams [topic.Classes]*quic.SendStream // opened by the first Write of the class, which owns its element

	mu      sync.Mutex
	watch   *time.Timer
	packets uint64 // received by the connection when heard was set
	heard   time.Time
}

// newCarrier is of a connection whose handshake is complete.
func newCarrier(conn *quic.Conn, config link.Config, dialed bool, released func()) *carrier {
	return &carrier{conn: conn, config: config, dialed: dialed, released: released, heard: time.Now()}
}

// start makes a link of c, by way of whole, which is c or wraps it.
func (c *carrier) start(whole link.Carrier, codec *link.Codec) (link.Conn, error) {
	state := c.conn.ConnectionState().TLS
	if len(state.PeerCertificates) == 0 || len(state.VerifiedChains) == 0 {
		return nil, errors.New("the peer has no verified certificate")
	}
	c.mu.Lock()
	c.watch = time.AfterFunc(c.lookEvery(), c.look)
	c.mu.Unlock()
	return link.Start(whole, codec, c.config, link.Info{
		Transport: link.QUIC, Local: c.conn.LocalAddr(), Remote: c.conn.RemoteAddr(), Peer: state.PeerCertificates[0], Since: time.Now(), Acks: true,
	}), nil
}

func (c *carrier) Traits() link.Traits {
	return link.Traits{Lanes: true, Batch: link.MaxBatch, Dialed: c.dialed}
}

// lookEvery is how exactly silence is measured.
func (c *carrier) lookEvery() time.Duration { return c.config.IdleTimeout / 8 }

// look ends a connection whose peer was silent for IdleTimeout. QUIC's own timeout counts from the
// first packet that was sent after the last that came (RFC 9000 section 10.1), which can double it.
func (c *carrier) look() {
	now := time.Now()
	silent := now.Sub(c.LastHeard())
	if silent > c.config.IdleTimeout-c.lookEvery() {
		c.closeWith(link.CloseTimeout, "the peer was silent for too long")
		return
	}
	if c.conn.Context().Err() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watch.Reset(c.lookEvery())
}

// Headers of a packet: of Ethernet, IP and UDP.
const (
	headers4 = 14 + 20 + 8
	headers6 = 14 + 40 + 8
)

// Wire implements link.Wired.
func (c *carrier) Wire() (link.Wire, bool) {
	s := c.conn.ConnectionStats()
	headers := uint64(headers4)
	if a, ok := c.conn.RemoteAddr().(*net.UDPAddr); ok && a.IP.To4() == nil {
		headers = headers6
	}
	return link.Wire{Sent: s.BytesSent + s.PacketsSent*headers, Received: s.BytesReceived + s.PacketsReceived*headers}, true
}

// LastHeard is exact to lookEvery.
func (c *carrier) LastHeard() time.Time {
	packets := c.conn.ConnectionStats().PacketsReceived
	c.mu.Lock()
	defer c.mu.Unlock()
	if packets != c.packets {
		c.packets, c.heard = packets, time.Now()
	}
	return c.heard
}

func (c *carrier) Serve(sink link.Sink) error {
	var streams sync.WaitGroup
	defer streams.Wait()
	// A reader may be waiting for quota instead of for the connection.
	defer context.AfterFunc(c.conn.Context(), func() { sink.End(readError(context.Cause(c.conn.Context()))) })()
	for range topic.Classes {
		s, err := c.conn.AcceptUniStream(context.Background()) // ends with the connection
		if err != nil {
			return readError(err)
		}
		streams.Go(func() { _ = sink.Read(stream{s}) }) // it has ended the link when it returns
	}
	streams.Wait()
	return nil
}

// stream is an incoming stream with the link's errors.
type stream struct{ *quic.ReceiveStream }

func (s stream) Read(b []byte) (int, error) {
	n, err := s.ReceiveStream.Read(b)
	if _, reset := errors.AsType[*quic.StreamError](err); reset || errors.Is(err, io.EOF) {
		return n, &link.CloseError{Code: link.CloseProtocol, Reason: "a stream ended before the link", Err: err}
	}
	return n, readError(err)
}

// readError distinguishes the peer's close from a network error.
func readError(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*quic.StatelessResetError](err); ok {
		return &link.CloseError{Code: link.CloseShutdown, Reason: "the peer has restarted", Remote: true, Err: e}
	}
	if e, ok := errors.AsType[*quic.ApplicationError](err); ok {
		return &link.CloseError{Code: link.CloseCode(e.ErrorCode), Reason: e.ErrorMessage, Remote: e.Remote}
	}
	if e, ok := errors.AsType[*quic.TransportError](err); ok {
		switch {
		case e.Remote && e.ErrorCode == quic.ConnectionRefused:
			return &link.CloseError{Code: link.CloseOverloaded, Reason: "the server refuses new links", Remote: true, Err: err}
		case e.Remote && e.ErrorCode == cryptoError(alertNoApplicationProtocol):
			return &link.CloseError{Code: link.CloseVersion, Reason: "the server does not speak " + protocol(), Remote: true, Err: err}
		case !e.Remote && e.ErrorCode == quic.ProtocolViolation, e.ErrorCode == quic.StreamLimitError, e.ErrorCode == quic.FrameEncodingError:
			return &link.CloseError{Code: link.CloseProtocol, Reason: "bytes that are no QUIC", Remote: e.Remote, Err: err}
		}
	}
	return err
}

// alertNoApplicationProtocol is TLS' no_application_protocol (RFC 7301).
const alertNoApplicationProtocol = 120

// cryptoError is how QUIC carries an alert of TLS (RFC 9001 section 4.8).
func cryptoError(alert quic.TransportErrorCode) quic.TransportErrorCode { return 0x100 + alert }

// Write opens the stream of a class when it is first used: an idle link keeps few. Strict
// priorities (RFC 9218) stand in for the core's order on a shared stream.
func (c *carrier) Write(class topic.Class, frames []byte) error {
	s := c.streams[class]
	if s == nil {
		var err error
		if s, err = c.conn.OpenUniStream(); err != nil {
			return readError(err)
		}
		s.SetPriority(int8(class), false)
		c.streams[class] = s
	}
	for {
		if err := s.SetWriteDeadline(time.Now().Add(c.config.IdleTimeout)); err != nil {
			return readError(err)
		}
		n, err := s.Write(frames)
		if frames = frames[n:]; err == nil || n == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return readError(err)
		}
	}
}

// Keepalive is not asked for: QUIC has its own.
func (c *carrier) Keepalive() error { return nil }

func (c *carrier) Stop(why *link.CloseError) { c.closeWith(why.Code, why.Reason) }

func (c *carrier) Close(why *link.CloseError) {
	c.mu.Lock()
	c.watch.Stop()
	c.mu.Unlock()
	c.closeWith(why.Code, why.Reason)
	if c.released != nil {
		c.released()
	}
}

// closeWith counts once; it is a no-op on a closed connection.
func (c *carrier) closeWith(code link.CloseCode, reason string) {
	if code == link.CloseNetwork { // of this end's network: the peer gets another code
		code = link.CloseInternal
	}
	_ = c.conn.CloseWithError(quic.ApplicationErrorCode(code), reason)
}
