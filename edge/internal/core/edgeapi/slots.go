package edgeapi

import (
	"io"
	"net"
	"net/http"
	"time"

	"github.com/skerry-io/skerry/edge/internal/core/connshare"
)

// bodyTimeout is how long a client may take to send the body of a request. Its slot is free then.
const bodyTimeout = 30 * time.Second

// requestShares bound the requests that are open at once; one client has at most a quarter.
func requestShares(all int) *connshare.Shares { return connshare.New(all, max(1, all/4)) }

// clientOf is a pod's address; "" for root, which may use the whole listener: on the device, or by
// certificate.
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
