package clienthello

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
)

// Max bounds a ClientHello, in bytes: one record (RFC 8446, 5.1).
const Max = 5 + 16<<10

// Hello is the part of a ClientHello by which connections are told apart.
type Hello struct {
	ServerName string   // RFC 6066, section 3; or ""
	Protocols  []string // by ALPN
}

// OffersHTTP2 reports whether the client may keep the connection for later requests (RFC 9113,
// 3.2). One that needs a connection for itself, as kube-apiserver does for exec, attach and
// port-forward, offers HTTP/1.1 alone: there is no upgrade in HTTP/2.
func (h Hello) OffersHTTP2() bool { return slices.Contains(h.Protocols, "h2") }

// errSeen ends a handshake once its hello has been read.
var errSeen = errors.New("seen")

// Read reads the first message of a TLS client by a handshake that ends there. It returns the bytes
// that it has read too, for who continues the handshake.
func Read(from io.Reader) (h Hello, read []byte, err error) {
	var kept bytes.Buffer
	seen := false
	only := &silent{from: io.TeeReader(io.LimitReader(from, Max), &kept)}
	err = tls.Server(only, &tls.Config{GetConfigForClient: func(i *tls.ClientHelloInfo) (*tls.Config, error) {
		h, seen = Hello{i.ServerName, i.SupportedProtos}, true
		return nil, errSeen
	}}).Handshake() //nolint:noctx // ends with its reader
	if seen {
		return h, kept.Bytes(), nil
	}
	return Hello{}, nil, err
}

// Incomplete reports whether more of a TLS record of the handshake (type 22) is to come.
func Incomplete(b []byte) bool {
	return len(b) == 0 || b[0] == 22 && (len(b) < 5 || len(b) < 5+int(b[3])<<8+int(b[4]))
}

// silent is a connection that discards its writes. The handshake needs no more of it.
type silent struct {
	net.Conn // nil
	from     io.Reader
}

func (s *silent) Read(b []byte) (int, error)  { return s.from.Read(b) }
func (s *silent) Write(b []byte) (int, error) { return len(b), nil }
