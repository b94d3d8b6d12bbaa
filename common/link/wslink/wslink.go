// Package wslink carries links over websocket (RFC 6455) on TLS 1.3.
//
// It owns the connections, the handshake and how close codes and keepalives look on a websocket. It
// refuses peers without a verified certificate, other versions of the protocol, and more links than
// its bound. Listener and Dialer may be used by many goroutines at once.
package wslink

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/internal/deadline"
	"github.com/skerry-io/skerry/common/topic"
)

// Path is where a cloudcore serves the link.
const Path = "/v1/link"

const (
	subprotocolPrefix = "skerry.v"
	// idleHeader sends the other end this one's idle timeout, in milliseconds.
	idleHeader = "Skerry-Idle-Timeout"

	// batch is the most in one websocket message, one TLS record and mostly one system call. It is
	// the longest wait of a heartbeat, 0.13 s at 256 kbit/s, and the size that crypto/tls keeps as
	// a buffer for each connection that has once received a record of that length.
	batch = 4 << 10
	// readBuffer is kept for each connection. Data of a long frame is read past it.
	readBuffer = 512
	// unsent is how much the kernel takes from us before it has been sent (TCP_NOTSENT_LOWAT): data
	// in there can't be overtaken.
	unsent = 8 << 10
	// patience is for how many times IdleTimeout the end that dialled keeps a peer whose kernel
	// acknowledges and which itself is silent. So long, an answer need not come: each would cost
	// an acknowledgement of its own. Not through a proxy, which acknowledges for itself.
	patience = 5
)

// subprotocol names the version of the framing that both ends speak.
func subprotocol() string { return subprotocolPrefix + strconv.Itoa(link.Framing) }

func formatIdle(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// parseIdle reads the header of the peer; an invalid value is replaced by
// this end's own.
func parseIdle(value string, own time.Duration) time.Duration {
	ms, err := strconv.ParseInt(value, 10, 32)
	if err != nil || ms < 100 {
		return own
	}
	return time.Duration(ms) * time.Millisecond
}

// carrier is a link.Carrier on a websocket.
type carrier struct {
	ws       *websocket.Conn
	raw      *deadline.Conn // beneath TLS
	config   link.Config
	dialed   bool
	peerIdle time.Duration
	acks     bool
	released func() // called when everything is closed

	buffered *bufio.Reader // the reader of ws, where that is known: of the end that accepted

	reader io.Reader // the message that Read is in, or nil; owned by Serve
}

func start(ws *websocket.Conn, raw *deadline.Conn, state tls.ConnectionState, codec *link.Codec, c carrier) (link.Conn, error) {
	if len(state.PeerCertificates) == 0 || len(state.VerifiedChains) == 0 {
		return nil, errors.New("the peer has no verified certificate")
	}
	c.ws, c.raw = ws, raw
	if err := raw.Arm(c.config.IdleTimeout); err != nil {
		return nil, err
	}
	return link.Start(&c, codec, c.config, link.Info{
		Transport: link.WebSocket, Local: ws.LocalAddr(), Remote: ws.RemoteAddr(), Peer: state.PeerCertificates[0], Since: time.Now(),
		Acks: c.acks,
	}), nil
}

func (c *carrier) Traits() link.Traits {
	return link.Traits{Batch: batch, Dialed: c.dialed, PeerIdle: c.peerIdle}
}

func (c *carrier) Serve(sink link.Sink) error {
	c.ws.SetPongHandler(func(string) error { sink.Alive(); return nil })
	c.ws.SetCloseHandler(func(int, string) error { return nil }) // Close answers
	if c.buffered == nil || !c.raw.Waits() {
		return sink.Read(c)
	}
	next, end := sink.Begin(c)
	for {
		err := aside(func() error { return c.serve(sink, next) })
		if err == nil {
			if err = c.raw.Wait(); err == nil {
				continue
			}
		}
		err = readError(err)
		end(err)
		return err
	}
}

// aside calls f on a stack of its own: the caller's stays as small as it is.
func aside(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return <-done
}

// serve reads all the messages that have come. It waits only for the rest of a message that has
// begun.
func (c *carrier) serve(sink link.Sink, next func() error) error {
	for {
		if c.reader != nil {
			if _, err := c.reader.Read(nil); errors.Is(err, io.EOF) { // it has been read to its end
				c.reader = nil
			}
		}
		var head []byte
		err := c.raw.Try(func() (err error) {
			head, err = c.buffered.Peek(1)
			return err
		})
		switch {
		case errors.Is(err, deadline.ErrNothing):
			return nil
		case err != nil:
			return err
		}
		if c.reader == nil && head[0] == finalPong {
			whole, err := c.keptAlive()
			if err != nil {
				return err
			}
			if whole {
				sink.Alive()
				continue
			}
		}
		if err := next(); err != nil {
			return err
		}
	}
}

// RFC 6455, 5.2: the first byte of a control frame that is a Pong; and the length of one from a
// client without a payload, which is masked by four bytes all the same.
const (
	finalPong   = 0x8a
	masked      = 0x80
	emptyLength = 6
)

// keptAlive takes a keepalive, which is a Pong without a payload: the library would wait for the
// next message behind it. It leaves everything else to the library.
func (c *carrier) keptAlive() (bool, error) {
	head, err := c.buffered.Peek(2)
	if err != nil || head[1] != masked {
		return false, err
	}
	_, err = c.buffered.Discard(emptyLength)
	return err == nil, err
}

// Read makes one stream of all binary messages: frames bound themselves.
func (c *carrier) Read(b []byte) (int, error) {
	for {
		if c.reader == nil {
			kind, r, err := c.ws.NextReader()
			if err != nil {
				return 0, readError(err)
			}
			if kind != websocket.BinaryMessage {
				return 0, &link.CloseError{Code: link.CloseProtocol, Reason: "a websocket message that is not binary"}
			}
			c.reader = r
		}
		n, err := c.reader.Read(b)
		if errors.Is(err, io.EOF) { // the end of the message
			c.reader = nil
			if n == 0 {
				continue
			}
			err = nil
		}
		if err != nil {
			err = readError(err)
		}
		return n, err
	}
}

// readError distinguishes the peer's close, and its breach of the protocol, from errors
// of the network.
func readError(err error) error {
	if closed, ok := errors.AsType[*websocket.CloseError](err); ok {
		if code, ok := closeCode(closed.Code); ok {
			return &link.CloseError{Code: code, Reason: closed.Text, Remote: true}
		}
		return err
	}
	var network net.Error
	if !errors.As(err, &network) && strings.HasPrefix(err.Error(), "websocket: ") { // the library's only sign of bytes that are no websocket
		return &link.CloseError{Code: link.CloseProtocol, Reason: "bytes that are no websocket", Err: err}
	}
	return err
}

// closeCode reads a websocket's close code: our own range, and the codes that servers and proxies
// between us may send.
func closeCode(code int) (link.CloseCode, bool) {
	switch code {
	case websocket.CloseNormalClosure, websocket.CloseGoingAway, websocket.CloseServiceRestart:
		return link.CloseShutdown, true
	case websocket.CloseProtocolError, websocket.CloseUnsupportedData, websocket.CloseInvalidFramePayloadData, websocket.CloseNoStatusReceived:
		return link.CloseProtocol, true
	case websocket.CloseMessageTooBig:
		return link.CloseTooLarge, true
	case websocket.CloseTryAgainLater:
		return link.CloseOverloaded, true
	case websocket.CloseInternalServerErr:
		return link.CloseInternal, true
	}
	return link.CloseCode(code), code >= 4000 && code <= 4999
}

func (c *carrier) Write(_ topic.Class, frames []byte) error {
	return c.ws.WriteMessage(websocket.BinaryMessage, frames)
}

// Keepalive is an unsolicited Pong, the one-way heartbeat of RFC 6455 section 5.5.3: an answer to
// it would double the cost of an idle link.
func (c *carrier) Keepalive() error {
	return c.ws.WriteControl(websocket.PongMessage, nil, time.Time{})
}

func (c *carrier) LastHeard() time.Time { return c.raw.Heard() }

func (c *carrier) Stop(*link.CloseError) {
	now := time.Now()
	_ = c.raw.Final(now, now.Add(c.config.CloseTimeout)) // a connection that can't be set deadlines is closed already
}

func (c *carrier) Close(why *link.CloseError) {
	end := time.Now().Add(c.config.CloseTimeout)
	_ = c.raw.Final(end, end)
	code := why.Code
	if code == link.CloseNetwork { // of this end's network: the peer gets another code
		code = link.CloseInternal
	}
	err := c.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(int(code), why.Reason), end)
	if tcp, ok := c.raw.Conn.(interface{ CloseWrite() error }); ok && err == nil && !why.Remote {
		// Received and unread data would make the kernel reset the connection and lose the
		// close message on its way: read until the peer ends too.
		if tcp.CloseWrite() == nil {
			_, _ = io.Copy(io.Discard, io.LimitReader(c.raw, 1<<20))
		}
	}
	_ = c.raw.Close() // the close message replaces the TLS alert
	if c.released != nil {
		c.released()
	}
}

// buffers is a websocket.BufferPool that both ends fill with buffers of one length.
func buffers() websocket.BufferPool { return &sync.Pool{} }
