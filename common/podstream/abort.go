package podstream

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
)

// breaking is a connection to a kubelet that notifies of its end in the middle, as with the link to
// its device. client-go's remotecommand takes that for the end of the output: without the status of
// an exec it reports success.
type breaking struct {
	net.Conn
	broken func()
}

// Read implements net.Conn.
func (b *breaking) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		b.broken() // before the reader gets it, who would end the client's stream properly
	}
	return n, err
}

// hijacking is an http.ResponseWriter whose connection, once it is taken over, can be ended.
type hijacking struct {
	http.ResponseWriter

	mu      sync.Mutex
	conn    net.Conn // nil: it is not taken over
	aborted bool
}

// Unwrap is for http.ResponseController.
func (h *hijacking) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// Hijack implements http.Hijacker.
func (h *hijacking) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, both, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.aborted {
		_ = conn.Close()
		return nil, nil, net.ErrClosed
	}
	h.conn = conn
	return conn, both, nil
}

// abort ends the client's connection, now or when it is taken over.
func (h *hijacking) abort() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.aborted = true
	if h.conn != nil {
		_ = h.conn.Close()
	}
}
