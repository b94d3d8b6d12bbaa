package tunnel

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

const (
	// statusTimeout bounds a question for the status, its answer over a thin link included.
	statusTimeout = 30 * time.Second
	// bundleTimeout bounds the packing of a bundle and its way over a thin link.
	bundleTimeout = 10 * time.Minute
	// maxQuestion bounds the question, in bytes.
	maxQuestion = 16 << 10
)

// serveStatus answers one request with the status of edgecore, whatever its path.
func serveStatus(conn net.Conn, show func(accept string) (body []byte, contentType string, err error)) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(statusTimeout))
	question, err := http.ReadRequest(bufio.NewReader(io.LimitReader(conn, maxQuestion)))
	if err != nil {
		return
	}
	answer := http.Response{StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, Close: true}
	body, kind, err := show(question.Header.Get("Accept"))
	if err != nil {
		answer.StatusCode, body, kind = http.StatusInternalServerError, []byte(err.Error()), "text/plain"
	}
	answer.Header.Set("Content-Type", kind)
	answer.ContentLength, answer.Body = int64(len(body)), io.NopCloser(bytes.NewReader(body))
	_ = answer.Write(conn) // the client may be gone
}

// serveBundle answers one request with an archive, as it is packed. An interrupted one does not
// look complete.
func serveBundle(conn net.Conn, pack func(ctx context.Context, w io.Writer) error) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(bundleTimeout))
	if _, err := http.ReadRequest(bufio.NewReader(io.LimitReader(conn, maxQuestion))); err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), bundleTimeout)
	defer cancel()
	r, w := io.Pipe()
	defer r.Close() // ends the packing where the asker has gone
	go func() { w.CloseWithError(pack(ctx, w)) }()
	answer := http.Response{
		StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Content-Type": {"application/gzip"}},
		ContentLength: -1, TransferEncoding: []string{"chunked"},
	}
	packed := bufio.NewReader(r)
	answer.Body = io.NopCloser(packed)
	if _, err := packed.Peek(1); err != nil {
		answer.StatusCode, answer.Header = http.StatusServiceUnavailable, http.Header{"Content-Type": {"text/plain"}}
		answer.Body = io.NopCloser(strings.NewReader(err.Error()))
	}
	_ = answer.Write(conn) // the client may be gone
}
