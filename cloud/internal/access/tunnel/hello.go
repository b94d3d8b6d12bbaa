package tunnel

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
)

// maxHello bounds the part of a TLS client's first message that is read, in bytes: one record
// (RFC 8446, 5.1).
const maxHello = 5 + 16<<10

// hello is the cleartext of a TLS client.
type hello struct {
	name string // of the server (RFC 6066, section 3); "" without one
	// pools is true of a client that offers HTTP/2 (RFC 9113, 3.2): it keeps the connection for the
	// requests to come. A client that needs a connection for itself, as kube-apiserver does for
	// exec, attach and port-forward, offers HTTP/1.1 alone: there is no upgrade in HTTP/2.
	pools bool
}

// errSeen ends a handshake once its hello has been read.
var errSeen = errors.New("seen")

// readHello reads the first message of a TLS client, and returns its content and all
// that was read.
func readHello(from io.Reader) (h hello, read []byte, err error) {
	var kept bytes.Buffer
	seen := false
	only := &listening{from: io.TeeReader(io.LimitReader(from, maxHello), &kept)}
	err = tls.Server(only, &tls.Config{GetConfigForClient: func(i *tls.ClientHelloInfo) (*tls.Config, error) {
		h, seen = hello{i.ServerName, slices.Contains(i.SupportedProtos, "h2")}, true
		return nil, errSeen
	}}).Handshake() //nolint:noctx // ends with its input
	if seen {
		return h, kept.Bytes(), nil
	}
	return hello{}, nil, err
}

// listening is a connection that can only be read. The handshake needs no more of it.
type listening struct {
	net.Conn // nil
	from     io.Reader
}

func (l *listening) Read(b []byte) (int, error)  { return l.from.Read(b) }
func (l *listening) Write(b []byte) (int, error) { return len(b), nil }
