package api

import (
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// bodyTimeout is how long a client may take to send the body of a request. Its slot is free then.
const bodyTimeout = 30 * time.Second

// slots bound what the clients of a listener have open at once, all together and each for itself.
type slots struct {
	all, each int

	mu     sync.Mutex
	taken  int
	client map[string]int
}

func newSlots(all int) *slots {
	return &slots{all: all, each: max(1, all/4), client: map[string]int{}}
}

// take returns false at the bound.
func (s *slots) take(client string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken >= s.all || client != "" && s.client[client] >= s.each {
		return false
	}
	s.taken++
	s.client[client]++
	return true
}

func (s *slots) give(client string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if s.client[client]--; s.client[client] == 0 {
		delete(s.client, client)
	}
}

// clientOf is a pod's address; "" for root, who has the whole listener: on the device, or
// by certificate.
func clientOf(r *http.Request) string {
	if identityFrom(r.Context()).Device {
		return ""
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return "" // a unix socket: root's
	}
	return host
}

// limitBody bounds the time in which the body arrives. A deadline on the whole request
// would end watches.
func limitBody(w http.ResponseWriter, r *http.Request) {
	if r.Body == nil || r.Body == http.NoBody {
		return
	}
	c := http.NewResponseController(w)
	if c.SetReadDeadline(time.Now().Add(bodyTimeout)) == nil {
		r.Body = &timedBody{ReadCloser: r.Body, over: func() { _ = c.SetReadDeadline(time.Time{}) }}
	}
}

// timedBody takes the deadline away once the body has been read.
type timedBody struct {
	io.ReadCloser
	over func()
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF { //nolint:errorlint // as io.Reader returns it
		b.over()
	}
	return n, err
}
