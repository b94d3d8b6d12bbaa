package edgeapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
)

// streamBuffer bounds the bytes buffered for a slow reader of a stream; then its writer waits.
const streamBuffer = 256 << 10

// RoundTripper answers the requests of clients in this process, as identity: a
// rest.Config{Host: Host, Transport: s.RoundTripper(...)} is a client of this server without
// listener, TLS or connection. A watch streams; its goroutine ends when the body is closed or
// the request's context ends.
func (s *Server) RoundTripper(identity Identity) http.RoundTripper {
	return &transport{server: s, identity: identity}
}

// Host is the rest.Config.Host of an in-process client. It is never resolved.
const Host = "http://edge.invalid"

type transport struct {
	server   *Server
	identity Identity
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer r.Body.Close() // RoundTrip must, and the handler is done with it before a watch begins
	}
	ctx, cancel := context.WithCancel(withIdentity(r.Context(), t.identity))
	in := r.Clone(ctx)
	in.RequestURI = r.URL.RequestURI()
	in.RemoteAddr = "in-process"
	if in.Body == nil {
		in.Body = http.NoBody
	}
	info, err := t.server.resolver.NewRequestInfo(in)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("in-process request: %w", err)
	}
	if !isWatch(info) {
		defer cancel()
		out := &recorder{header: http.Header{}}
		t.server.serve(out, in, info)
		if err := ctx.Err(); err != nil && out.code == 0 {
			return nil, context.Cause(ctx)
		}
		return out.response(r), nil
	}

	out := newStream(cancel)
	go func() {
		defer out.finish()
		defer cancel()
		t.server.serve(out, in, info)
	}()
	select {
	case <-out.begun:
	case <-r.Context().Done(): // the caller's: ours also ends when the handler does, which may be as soon as the answer has begun
		out.Close()
		return nil, context.Cause(r.Context())
	}
	return &http.Response{
		Status: status(out.code), StatusCode: out.code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: out.sent, Body: out, ContentLength: -1, Request: r,
	}, nil
}

func status(code int) string { return strconv.Itoa(code) + " " + http.StatusText(code) }

// recorder takes a whole answer.
type recorder struct {
	header http.Header
	sent   http.Header
	code   int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(code int) {
	if r.code == 0 {
		r.code, r.sent = code, r.header.Clone()
	}
}

func (r *recorder) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(p)
}

func (r *recorder) Flush() {}

func (r *recorder) response(request *http.Request) *http.Response {
	r.WriteHeader(http.StatusOK)
	return &http.Response{
		Status: status(r.code), StatusCode: r.code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: r.sent, Body: io.NopCloser(&r.body), ContentLength: int64(r.body.Len()), Request: request,
	}
}

// stream is an answer that is read while it is written. The handler's goroutine writes, the
// client's reads and closes.
type stream struct {
	header http.Header
	begun  chan struct{} // closed when code and sent are set
	once   sync.Once
	code   int
	sent   http.Header
	cancel context.CancelFunc

	mu       sync.Mutex
	changed  sync.Cond
	buffer   bytes.Buffer
	finished bool // no more is written
	closed   bool // no more is read
}

func newStream(cancel context.CancelFunc) *stream {
	s := &stream{header: http.Header{}, begun: make(chan struct{}), cancel: cancel}
	s.changed.L = &s.mu
	return s
}

func (s *stream) Header() http.Header { return s.header }

func (s *stream) WriteHeader(code int) {
	s.once.Do(func() {
		s.code, s.sent = code, s.header.Clone()
		close(s.begun)
	})
}

var errStreamClosed = errors.New("the reader has closed the stream")

// Write waits while the reader is behind.
func (s *stream) Write(p []byte) (int, error) {
	s.WriteHeader(http.StatusOK)
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.buffer.Len() >= streamBuffer && !s.closed {
		s.changed.Wait()
	}
	if s.closed {
		return 0, errStreamClosed
	}
	n, err := s.buffer.Write(p)
	s.changed.Broadcast()
	return n, err
}

func (s *stream) Flush() { s.WriteHeader(http.StatusOK) }

func (s *stream) finish() {
	s.WriteHeader(http.StatusOK)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished = true
	s.changed.Broadcast()
}

// Read blocks until there is data.
func (s *stream) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.buffer.Len() == 0 && !s.finished && !s.closed {
		s.changed.Wait()
	}
	switch {
	case s.closed:
		return 0, http.ErrBodyReadAfterClose
	case s.buffer.Len() == 0:
		return 0, io.EOF
	}
	n, err := s.buffer.Read(p)
	if s.buffer.Len() == 0 && s.buffer.Cap() > 4<<10 {
		s.buffer = bytes.Buffer{} // an idle watch keeps no buffer; there are hundreds of them
	}
	s.changed.Broadcast()
	return n, err
}

// Close ends the handler.
func (s *stream) Close() error {
	s.mu.Lock()
	s.closed = true
	s.buffer = bytes.Buffer{}
	s.changed.Broadcast()
	s.mu.Unlock()
	s.cancel()
	return nil
}
