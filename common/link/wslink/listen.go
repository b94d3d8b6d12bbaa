package wslink

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/httpserver"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/internal/deadline"
	"github.com/skerry-io/skerry/common/topic"
)

// ListenConfig configures a Listener.
type ListenConfig struct {
	Link  link.Config
	TLS   *tls.Config // must verify the clients
	Table *topic.Table
	// MaxLinks is how many links may be open; another is answered 503 with Retry-After. 0:
	// no bound.
	MaxLinks int
	// MaxHandshakes is how many handshakes run at once, of which one address has its share
	// (link.Shares). Four times as many connections wait for a place, before any work is done for
	// them; others are closed. 0: 128.
	MaxHandshakes int
	// RetryAfter is the shortest delay sent to a client above MaxLinks; the delay sent is up to
	// twice that, so that not all come back at once. 0: 5 s.
	RetryAfter time.Duration
	// Socket, if set, is where connections come from; no address is opened then, and Close
	// closes it.
	Socket net.Listener
	// Wrap, if set, wraps each TCP connection that was accepted.
	Wrap func(net.Conn) net.Conn
}

// Listener accepts links.
type Listener struct {
	config   ListenConfig
	log      klog.Logger
	codec    *link.Codec
	upgrader websocket.Upgrader
	server   *http.Server
	socket   *gate
	links    atomic.Int64
	accepted chan link.Conn
	closed   chan struct{}
	close    func() error
	served   sync.WaitGroup
}

// Listen opens address ("host:port") and serves it until Close. ctx bounds the opening alone, and
// its logger is kept.
func Listen(ctx context.Context, address string, config ListenConfig) (*Listener, error) {
	if err := config.Link.Validate(); err != nil {
		return nil, err
	}
	secure, err := link.ServerTLS(config.TLS, "http/1.1")
	if err != nil {
		return nil, err
	}
	if config.MaxHandshakes <= 0 {
		config.MaxHandshakes = 128
	}
	if config.RetryAfter <= 0 {
		config.RetryAfter = 5 * time.Second
	}
	socket := config.Socket
	if socket == nil {
		if socket, err = (&net.ListenConfig{KeepAlive: -1}).Listen(ctx, "tcp", address); err != nil { // the link has its own keepalive
			return nil, fmt.Errorf("listening for websockets: %w", err)
		}
	}
	l := &Listener{
		config: config, log: klog.FromContext(ctx), codec: link.NewCodec(config.Table, config.Link),
		upgrader: websocket.Upgrader{
			WriteBufferSize: batch, WriteBufferPool: buffers(), Subprotocols: []string{subprotocol()},
			CheckOrigin: func(*http.Request) bool { return true }, // certificates decide on admission, and no browser has one
		},
		accepted: make(chan link.Conn), closed: make(chan struct{}),
	}
	l.socket = newGate(socket, config)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path, l.handle)
	l.server = &http.Server{
		Handler: mux,
		// No HTTP/2: a websocket needs a connection of its own.
		TLSNextProto:   map[string]func(*http.Server, *tls.Conn, http.Handler){},
		MaxHeaderBytes: 8 << 10,
		ReadTimeout:    config.Link.HandshakeTimeout, WriteTimeout: config.Link.HandshakeTimeout, // with TLS' handshake
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ConnState: func(c net.Conn, state http.ConnState) {
			if state == http.StateHijacked || state == http.StateClosed {
				c.(*tls.Conn).NetConn().(*gated).release()
			}
		},
		ErrorLog: httpserver.Log(l.log, "websockets"),
	}
	l.server.SetKeepAlivesEnabled(false)
	l.close = sync.OnceValue(func() error {
		close(l.closed)
		err := l.server.Close()
		l.served.Wait()
		l.socket.wait()
		return err
	})
	l.served.Go(func() {
		if err := l.server.Serve(tls.NewListener(l.socket, secure)); !errors.Is(err, http.ErrServerClosed) {
			l.log.Error(err, "Failed to serve websockets: devices without QUIC can't connect until cloudcore is restarted")
		}
	})
	return l, nil
}

type connKey struct{} // of the *tls.Conn in a request's context

// Accept implements link.Listener.
func (l *Listener) Accept(ctx context.Context) (link.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.closed:
		return nil, fmt.Errorf("accepting a websocket: %w", net.ErrClosed)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Addr is where the listener listens.
func (l *Listener) Addr() net.Addr { return l.socket.Addr() }

// Close stops listening. Links that were accepted live on.
func (l *Listener) Close() error { return l.close() }

// Links is how many are open.
func (l *Listener) Links() int { return int(l.links.Load()) }

func (l *Listener) handle(w http.ResponseWriter, r *http.Request) {
	if bound := l.config.MaxLinks; l.links.Add(1) > int64(bound) && bound > 0 {
		l.links.Add(-1)
		wait := l.config.RetryAfter + rand.N(l.config.RetryAfter)
		w.Header().Set("Retry-After", strconv.Itoa(int((wait + time.Second - 1).Seconds())))
		http.Error(w, "too many links", http.StatusServiceUnavailable)
		return
	}
	release := sync.OnceFunc(func() { l.links.Add(-1) })
	started := false
	defer func() {
		if !started {
			release()
		}
	}()
	if want := subprotocol(); websocket.IsWebSocketUpgrade(r) && !slices.Contains(websocket.Subprotocols(r), want) {
		http.Error(w, "this end speaks "+want, http.StatusUpgradeRequired)
		return
	}
	secure, ok := r.Context().Value(connKey{}).(*tls.Conn)
	if !ok {
		http.Error(w, "no TLS", http.StatusForbidden)
		return
	}
	up := &hijacker{ResponseWriter: w}
	ws, err := l.upgrader.Upgrade(up, r, http.Header{idleHeader: {formatIdle(l.config.Link.IdleTimeout)}})
	if err != nil {
		l.log.V(2).Info("Closed a connection that is not an edge's", "remote", r.RemoteAddr, "err", err)
		return
	}
	c, err := start(ws, secure.NetConn().(*gated).Conn, secure.ConnectionState(), l.codec, carrier{
		config: l.config.Link, peerIdle: parseIdle(r.Header.Get(idleHeader), l.config.Link.IdleTimeout), released: release,
		buffered: up.buffered,
	})
	if err != nil {
		_ = ws.Close()
		l.log.V(2).Info("Closed a connection that is not an edge's", "remote", r.RemoteAddr, "err", err)
		return
	}
	started = true
	wait := time.NewTimer(l.config.Link.HandshakeTimeout)
	defer wait.Stop()
	select {
	case l.accepted <- c:
	case <-c.Done():
	case <-l.closed:
		_ = c.Close(link.CloseShutdown, "the listener was closed")
	case <-wait.C:
		_ = c.Close(link.CloseOverloaded, "retry-after="+strconv.Itoa(int(l.config.RetryAfter.Seconds())))
	}
}

// hijacker has the library read through our own buffer, of our size, which shows whether anything
// has come.
type hijacker struct {
	http.ResponseWriter
	buffered *bufio.Reader
}

// Hijack implements http.Hijacker.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, both, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	if both.Reader.Buffered() == 0 { // else the client did not wait for the answer, and its data is in there
		both.Reader = bufio.NewReaderSize(conn, readBuffer)
	}
	h.buffered = both.Reader
	return conn, both, nil
}

// gate bounds how many connections are in their handshake, all together and of one address.
type gate struct {
	net.Listener
	wrap    func(net.Conn) net.Conn
	shares  *link.Shares[netip.Prefix]
	patient time.Duration // how long a connection waits for a place
	waiting chan struct{} // a token for each that waits
	ready   chan *gated
	failed  chan error
	closed  chan struct{}
	close   func() error
	running sync.WaitGroup
}

func newGate(l net.Listener, config ListenConfig) *gate {
	g := &gate{
		Listener: l, wrap: config.Wrap, shares: link.NewShares[netip.Prefix](config.MaxHandshakes), patient: 3 * config.Link.HandshakeTimeout,
		waiting: make(chan struct{}, 4*config.MaxHandshakes), ready: make(chan *gated), failed: make(chan error), closed: make(chan struct{}),
	}
	g.close = sync.OnceValue(func() error {
		close(g.closed)
		return g.Listener.Close()
	})
	g.running.Go(g.accept)
	return g
}

// gated is a connection that has a place until it is released.
type gated struct {
	*deadline.Conn
	release func()
}

// Accept implements net.Listener.
func (g *gate) Accept() (net.Conn, error) {
	select {
	case c := <-g.ready:
		return c, nil
	case err := <-g.failed:
		return nil, err
	case <-g.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (g *gate) Close() error { return g.close() }

// wait returns after the last goroutine has ended after Close.
func (g *gate) wait() { g.running.Wait() }

// accept takes every connection that comes, so that those of one address hold up no other's.
func (g *gate) accept() {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			select {
			case g.failed <- err:
				continue
			case <-g.closed:
				return
			}
		}
		if leave, ok := g.shares.Enter(link.Source(c.RemoteAddr())); ok {
			g.pass(c, leave)
			continue
		}
		select {
		case g.waiting <- struct{}{}:
			g.running.Go(func() {
				defer func() { <-g.waiting }()
				g.queue(c)
			})
		default:
			_ = c.Close() // it cost an accept alone
		}
	}
}

// queue waits for a place for c.
func (g *gate) queue(c net.Conn) {
	const every = 20 * time.Millisecond
	look := time.NewTicker(every)
	defer look.Stop()
	for end := time.Now().Add(g.patient); time.Now().Before(end); {
		select {
		case <-look.C:
		case <-g.closed:
			_ = c.Close()
			return
		}
		if leave, ok := g.shares.Enter(link.Source(c.RemoteAddr())); ok {
			g.pass(c, leave)
			return
		}
	}
	_ = c.Close()
}

// pass hands a connection that has its place to the server.
func (g *gate) pass(c net.Conn, leave func()) {
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			_ = control("", "", raw) // without it the link is only slower to let heartbeats pass
		}
	}
	if g.wrap != nil {
		c = g.wrap(c)
	}
	select {
	case g.ready <- &gated{deadline.Wrap(c), leave}:
	case <-g.closed:
		leave()
		_ = c.Close()
	}
}
