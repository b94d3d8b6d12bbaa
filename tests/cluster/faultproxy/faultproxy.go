// Package faultproxy stands in front of an API server and makes it look as if the server, or the
// way to it, were in trouble.
//
// It owns one listener while it serves, and decides about each request by the function it was
// given; requests that pass are unchanged. Events of watches may arrive late (see Lag), in their
// order. It is stateless, and passes everything by default. The functions may be called by many
// goroutines at once, and may be replaced at any time.
package faultproxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// A Fault is the treatment of one request. The zero Fault passes it.
type Fault struct {
	// Code, when set, is answered instead of asking the server, with RetryAfter seconds
	// when that is set.
	Code       int
	RetryAfter int
	// Delay is waited before the server is asked, or answers Code.
	Delay time.Duration
	// Hang holds the request until the client gives up.
	Hang bool
	// Until, when set, holds the request until it is closed and then passes it on, though the
	// client may have given up: bytes that were in a kernel's buffer.
	Until <-chan struct{}
	// Break closes the connection without an answer.
	Break bool
	// Lose sends the request, so that it is carried out, and then breaks the connection.
	Lose bool
}

// A Proxy passes requests on, except for those that meet a Fault.
type Proxy struct {
	proxy  *httputil.ReverseProxy
	decide atomic.Pointer[func(*http.Request) Fault]

	lagMu   sync.Mutex
	lag     func(*http.Request) Lag
	changed chan struct{} // closed and replaced when lag is
}

// New makes a Proxy in front of an https server whose certificate the CA (PEM) signed. dial makes
// the connections to it.
func New(server *url.URL, ca []byte, dial func(context.Context, string, string) (net.Conn, error)) (*Proxy, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("the CA of the API server is no PEM certificate")
	}
	p := &Proxy{proxy: &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(server) },
		Transport: &http.Transport{
			DialContext: dial, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true, DisableCompression: true,
		},
		FlushInterval: -1, // a watch's events pass at once
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:      log.New(discard{}, "", 0),
	}}
	p.Set(nil)
	p.SetLag(nil)
	return p, nil
}

// Set replaces the function that decides about requests; nil lets all pass.
func (p *Proxy) Set(decide func(*http.Request) Fault) {
	if decide == nil {
		decide = func(*http.Request) Fault { return Fault{} }
	}
	p.decide.Store(&decide)
}

// SetLag replaces the function that delays the events of a watch; nil removes the delay. It applies
// at once, also for watches that are open and for events that wait already. The answer's header is
// never late, and an end of the watch comes after its last event.
func (p *Proxy) SetLag(lag func(watch *http.Request) Lag) {
	if lag == nil {
		lag = func(*http.Request) Lag { return Lag{} }
	}
	p.lagMu.Lock()
	defer p.lagMu.Unlock()
	p.lag = lag
	if p.changed != nil {
		close(p.changed)
	}
	p.changed = make(chan struct{})
}

// lagOf is how late a watch is now, and a channel that is closed when that may have changed.
func (p *Proxy) lagOf(r *http.Request) (Lag, <-chan struct{}) {
	p.lagMu.Lock()
	lag, changed := p.lag, p.changed
	p.lagMu.Unlock()
	return lag(r), changed
}

// Serve serves with a certificate that the client takes for the server's, until ctx ends.
func (p *Proxy) Serve(ctx context.Context, l net.Listener, certificate tls.Certificate) error {
	server := &http.Server{
		Handler: p, ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		ErrorLog:  log.New(discard{}, "", 0), // broken connections are intended
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.ServeTLS(l, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the fault proxy: %w", err)
	}
	return nil
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f := (*p.decide.Load())(r)
	if f.Delay > 0 {
		select {
		case <-time.After(f.Delay):
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
	switch {
	case f.Hang:
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	case f.Until != nil:
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		<-f.Until
		late := r.Clone(context.WithoutCancel(r.Context()))
		late.Body = io.NopCloser(bytes.NewReader(body))
		p.proxy.ServeHTTP(w, late)
	case f.Break:
		panic(http.ErrAbortHandler)
	case f.Lose:
		p.proxy.ServeHTTP(nowhere{http.Header{}}, r)
		panic(http.ErrAbortHandler)
	case f.Code != 0:
		if f.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfter))
		}
		http.Error(w, "the fault proxy says so", f.Code)
	case Watch(r):
		late(w, r, p.proxy, func() (Lag, <-chan struct{}) { return p.lagOf(r) })
	default:
		p.proxy.ServeHTTP(w, r)
	}
}

// nowhere discards an answer that has no client.
type nowhere struct{ header http.Header }

func (n nowhere) Header() http.Header       { return n.header }
func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (nowhere) WriteHeader(int)             {}
