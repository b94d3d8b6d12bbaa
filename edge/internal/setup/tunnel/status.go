package tunnel

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"time"
)

const (
	// statusTimeout bounds a question for the status, its answer over a thin link included.
	statusTimeout = 30 * time.Second
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
	_ = answer.Write(conn) // who asked may be gone
}
