package wslink

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gorilla/websocket"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/internal/deadline"
	"github.com/skerry-io/skerry/common/topic"
)

// DialConfig configures a Dialer.
type DialConfig struct {
	Link  link.Config
	TLS   *tls.Config // must verify the server and show a certificate
	Table *topic.Table
	// Codec, if set, was made with Link and Table and is shared with other dialers: it holds the
	// compressor's memory.
	Codec *link.Codec
	// Proxy chooses the proxy of a request; nil: no proxy. http.ProxyFromEnvironment reads
	// HTTPS_PROXY and NO_PROXY.
	Proxy func(*http.Request) (*url.URL, error)
	// Wrap, if set, wraps each TCP connection.
	Wrap func(net.Conn) net.Conn
}

// Dialer opens links.
type Dialer struct {
	config DialConfig
	codec  *link.Codec
	pool   websocket.BufferPool

	mu     sync.Mutex
	narrow time.Time // when segments may be large again; zero: they may be
}

// narrowFor is how long connections use small segments after a loss. Paths change.
const narrowFor = time.Hour

// lostLarge records that the TCP handshake succeeded and the TLS handshake timed out, as behind a
// router that drops large packets without an ICMP error (a PMTUD black hole; RFC 2923, 2.1). The
// next dials use small segments.
func (d *Dialer) lostLarge() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.narrow = time.Now().Add(narrowFor)
}

// control returns the socket options of the next connection.
func (d *Dialer) control() (f func(network, address string, c syscall.RawConn) error, narrow bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Now().Before(d.narrow) {
		return small, true
	}
	return control, false
}

// NewDialer checks the configuration.
func NewDialer(config DialConfig) (*Dialer, error) {
	if err := config.Link.Validate(); err != nil {
		return nil, err
	}
	var err error
	if config.TLS, err = link.ClientTLS(config.TLS, "http/1.1"); err != nil {
		return nil, err
	}
	config.TLS.NextProtos = []string{link.Protocol, "http/1.1"} // HTTP/1.1 is used; the first names the purpose
	return &Dialer{config: config, codec: cmp.Or(config.Codec, link.NewCodec(config.Table, config.Link)), pool: buffers()}, nil
}

// Dial implements link.Dialer. Where the server gave a reason, the error holds a *link.CloseError.
func (d *Dialer) Dial(ctx context.Context, address string) (link.Conn, error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, fmt.Errorf("dialling a websocket: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, d.config.Link.HandshakeTimeout)
	defer cancel()
	to := &url.URL{Scheme: "wss", Host: address, Path: Path}
	direct, idle := d.direct(to), d.config.Link.IdleTimeout
	if direct {
		idle *= patience
	}
	var raw *deadline.Conn
	var stop func() bool
	how, narrow := d.control()
	w := websocket.Dialer{
		NetDialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := (&net.Dialer{Control: how, KeepAlive: -1}).DialContext(ctx, network, address) // the link has its own keepalive
			if err != nil {
				return nil, err
			}
			if d.config.Wrap != nil {
				c = d.config.Wrap(c)
			}
			raw = deadline.Wrap(c)
			if direct {
				ago, err := acknowledged(c)
				if err != nil {
					_ = c.Close()
					return nil, fmt.Errorf("asking when the peer acknowledged: %w", err)
				}
				raw.Acked(idle, ago)
			}
			stop = context.AfterFunc(ctx, func() { _ = c.Close() }) // the library heeds a deadline while it talks, but no cancellation
			return raw, nil
		},
		Proxy:           d.config.Proxy,
		TLSClientConfig: d.config.TLS,
		ReadBufferSize:  readBuffer, WriteBufferSize: batch, WriteBufferPool: d.pool,
		Subprotocols: []string{subprotocol()},
	}
	ws, response, err := w.DialContext(ctx, to.String(), http.Header{idleHeader: {formatIdle(idle)}})
	if stop != nil && !stop() {
		err = errors.Join(context.Cause(ctx), err)
		if ws != nil {
			_ = ws.Close()
		}
	}
	if err != nil && raw != nil && response == nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		why := "large packets may be lost on the way (its MTU): the next try is with small ones"
		if narrow {
			why = "not with small packets either"
		}
		d.lostLarge()
		err = fmt.Errorf("the connection stands, and the handshake does not get through; %s: %w", why, err)
	}
	if err != nil {
		return nil, fmt.Errorf("dialling websocket %s: %w", address, dialError(response, err))
	}
	if got := ws.Subprotocol(); got != subprotocol() {
		_ = ws.Close()
		return nil, fmt.Errorf("dialling websocket %s: %w", address,
			&link.CloseError{Code: link.CloseVersion, Reason: fmt.Sprintf("the server speaks %q", got)})
	}
	secure, ok := ws.NetConn().(*tls.Conn)
	if !ok {
		_ = ws.Close()
		return nil, fmt.Errorf("dialling websocket %s: no TLS", address)
	}
	c, err := start(ws, raw, secure.ConnectionState(), d.codec, carrier{
		config: d.config.Link, dialed: true, acks: direct, peerIdle: parseIdle(response.Header.Get(idleHeader), d.config.Link.IdleTimeout),
	})
	if err != nil {
		_ = ws.Close()
		return nil, fmt.Errorf("dialling websocket %s: %w", address, err)
	}
	return c, nil
}

// direct reports whether the server itself acknowledges data: no proxy, and a connection
// that is the kernel's.
func (d *Dialer) direct(to *url.URL) bool {
	if d.config.Wrap != nil {
		return false
	}
	if d.config.Proxy == nil {
		return true
	}
	// As the websocket library asks for it.
	proxy, err := d.config.Proxy(&http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "https", Host: to.Host, Path: to.Path}, Host: to.Host})
	return err == nil && proxy == nil
}

// dialError adds the server's answer.
func dialError(response *http.Response, err error) error {
	if response == nil || !errors.Is(err, websocket.ErrBadHandshake) {
		return err
	}
	text, _ := io.ReadAll(io.LimitReader(response.Body, 256)) // the library has it in memory already
	e := &link.CloseError{Remote: true, Reason: response.Status, Err: err}
	if first, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n"); first != "" {
		e.Reason += ": " + first
	}
	switch response.StatusCode {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusGatewayTimeout:
		e.Code = link.CloseOverloaded
		if after := response.Header.Get("Retry-After"); after != "" {
			e.Reason = "retry-after=" + after
		}
	case http.StatusUpgradeRequired:
		e.Code = link.CloseVersion
	case http.StatusForbidden, http.StatusUnauthorized:
		e.Code = link.CloseForbidden
	default:
		e.Code = link.CloseProtocol // perhaps no cloudcore at all; it may become one
	}
	return e
}
