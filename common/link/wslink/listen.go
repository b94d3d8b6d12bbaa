package wslink

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/internal/deadline"
	"github.com/skerry-io/skerry/common/topic"
)

// ListenConfig is what a Listener is made of.
type ListenConfig struct {
	Link  link.Config
	TLS   *tls.Config // must verify the clients
	Table *topic.Table
	// MaxLinks is how many links may be open; another is answered 503 with Retry-After. 0: no bound.
	MaxLinks int
	// MaxHandshakes is how many handshakes run at once; others wait in the kernel's backlog, before any work is done for them. 0: 128.
	MaxHandshakes int
	// RetryAfter is the least that one above MaxLinks is told to wait; it is told up to twice as much, so that not all come back at once. 0: 5 s.
	RetryAfter time.Duration
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

// Listen opens address ("host:port") and serves it until Close. ctx bounds the opening alone, and its logger is kept.
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
	socket, err := (&net.ListenConfig{KeepAlive: -1}).Listen(ctx, "tcp", address) // the link has its own keepalive
	if err != nil {
		return nil, fmt.Errorf("listening for websockets: %w", err)
	}
	l := &Listener{
		config: config, log: klog.FromContext(ctx), codec: link.NewCodec(config.Table, config.Link),
		upgrader: websocket.Upgrader{
			WriteBufferSize: batch, WriteBufferPool: buffers(), Subprotocols: []string{subprotocol()},
			CheckOrigin: func(*http.Request) bool { return true }, // who may come is decided by certificates, and no browser has one
		},
		accepted: make(chan link.Conn), closed: make(chan struct{}),
	}
	l.socket = &gate{Listener: socket, wrap: config.Wrap, slots: make(chan struct{}, config.MaxHandshakes), closed: l.closed}
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
		ErrorLog: log.New(errorLog{l.log}, "", 0),
	}
	l.server.SetKeepAlivesEnabled(false)
	l.close = sync.OnceValue(func() error {
		close(l.closed)
		err := l.server.Close()
		l.served.Wait()
		return err
	})
	l.served.Go(func() {
		if err := l.server.Serve(tls.NewListener(l.socket, secure)); !errors.Is(err, http.ErrServerClosed) {
			l.log.Error(err, "Serving websockets ended")
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
		l.log.V(2).Info("Not a link", "remote", r.RemoteAddr, "err", err)
		return
	}
	c, err := start(ws, secure.NetConn().(*gated).Conn, secure.ConnectionState(), l.codec, carrier{
		config: l.config.Link, peerIdle: parseIdle(r.Header.Get(idleHeader), l.config.Link.IdleTimeout), released: release,
		buffered: up.buffered,
	})
	if err != nil {
		_ = ws.Close()
		l.log.V(2).Info("Not a link", "remote", r.RemoteAddr, "err", err)
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

// hijacker lets the library read by a buffer of our size that we know: only so can be told whether anything has come.
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
	if both.Reader.Buffered() == 0 { // else the client did not wait for the answer, and what it said is in there
		both.Reader = bufio.NewReaderSize(conn, readBuffer)
	}
	h.buffered = both.Reader
	return conn, both, nil
}

// gate bounds how many connections are in their handshake.
type gate struct {
	net.Listener
	wrap   func(net.Conn) net.Conn
	slots  chan struct{}
	closed <-chan struct{}
}

// gated is a connection that has a slot until it is released.
type gated struct {
	*deadline.Conn
	release func()
}

func (g *gate) Accept() (net.Conn, error) {
	select {
	case g.slots <- struct{}{}:
	case <-g.closed:
		return nil, net.ErrClosed
	}
	c, err := g.Listener.Accept()
	if err != nil {
		<-g.slots
		return nil, err
	}
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			_ = control("", "", raw) // without it the link is only slower to let heartbeats pass
		}
	}
	if g.wrap != nil {
		c = g.wrap(c)
	}
	return &gated{deadline.Wrap(c), sync.OnceFunc(func() { <-g.slots })}, nil
}

// errorLog leads what net/http has to say, mostly of handshakes that failed, to the log.
type errorLog struct{ log klog.Logger }

func (l errorLog) Write(b []byte) (int, error) {
	l.log.V(2).Info("Websocket handshake failed", "what", string(b))
	return len(b), nil
}
