package kube

import (
	"errors"
	"io"
	"net/http"
)

// MaxResponse bounds the body of an answer that Do reads, in bytes.
const MaxResponse = 8 << 20

// ErrTooLarge is returned for an answer above the bound.
var ErrTooLarge = errors.New("the answer of kube-apiserver is too large")

// ErrNoRoom is returned where Memory had no room for the answer. The request was made.
var ErrNoRoom = errors.New("there is no room for the answer of kube-apiserver")

// Memory bounds the memory of answers, in bytes; a *quota.Bytes.
type Memory interface {
	// Take reports whether there is room for so many bytes, and holds them then.
	Take(n int) bool
	// Give ends the holding of so many bytes.
	Give(n int)
}

// unbounded is the Memory of requests that cloudcore makes of its own accord.
type unbounded struct{}

func (unbounded) Take(int) bool { return true }
func (unbounded) Give(int)      { /* nothing is counted */ }

// window is how many bytes of one answer kube-apiserver may send before they are read (RFC 9113,
// 5.2): they are in memory and not counted. client-go's default is 4 MiB, which the 16 requests of
// one link would make 64. At a round trip of 1 ms it lets 128 MB pass in a second.
const window = 128 << 10

// narrow sets the window of an unused transport. A wrapper that doesn't expose its inner transport,
// as tests have them, keeps its own.
func narrow(rt http.RoundTripper) {
	for rt != nil {
		if t, ok := rt.(*http.Transport); ok {
			t.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: window}
			return
		}
		wrapper, ok := rt.(interface{ WrappedRoundTripper() http.RoundTripper })
		if !ok {
			return
		}
		rt = wrapper.WrappedRoundTripper()
	}
}

// steps are the sizes of buffers for an answer of unknown length. Most answers are an object; the
// length of a list is unknown, so the last one is for the longest. Few steps: in each the old
// buffer and the new are there at once.
func steps(limit int) []int { return []int{16 << 10, 256 << 10, 1 << 20, limit + 1} }

// readBody reads an answer into memory that was reserved for it before, counting the capacity of
// the buffers and not their length. The returned body's memory is held, as long as its capacity;
// with an error all is released.
func readBody(r *http.Response, limit int, memory Memory) ([]byte, error) {
	var body []byte
	sizes := steps(limit)
	if n := r.ContentLength; n >= 0 {
		if n > int64(limit) {
			return nil, ErrTooLarge
		}
		sizes = []int{int(n)}
	}
	for i, size := range sizes {
		if !memory.Take(size) {
			memory.Give(cap(body))
			return nil, ErrNoRoom
		}
		next := make([]byte, len(body), size)
		copy(next, body)
		memory.Give(cap(body))
		body = next
		n, err := io.ReadFull(r.Body, body[len(body):size])
		body = body[:len(body)+n]
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return fit(body, memory), nil
		case err != nil:
			memory.Give(cap(body))
			return nil, err
		case i == len(sizes)-1 && r.ContentLength >= 0:
			return body, nil
		}
	}
	memory.Give(cap(body))
	return nil, ErrTooLarge
}

// fit releases the unused capacity of a buffer, where that is most of it and there is room for both
// copies.
func fit(body []byte, memory Memory) []byte {
	if len(body) > cap(body)/2 || !memory.Take(len(body)) {
		return body
	}
	fitting := make([]byte, len(body))
	copy(fitting, body)
	memory.Give(cap(body))
	return fitting
}
