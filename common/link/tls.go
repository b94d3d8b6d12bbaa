package link

import (
	"crypto/tls"
	"errors"
	"fmt"
	"sync/atomic"
)

// Protocol is the name that a device offers by ALPN (RFC 7301) with that of a transport over TCP:
// cloudcore's one port recognizes by it a client for a link.
const Protocol = "skerry-link"

// ClientTLS is a copy of c for a dialer: TLS 1.3 only, the one protocol, and sessions kept apart
// from those of other protocols. It refuses a configuration that would not verify the server or not
// show a certificate.
func ClientTLS(c *tls.Config, protocol string) (*tls.Config, error) {
	var errs []error
	if c.InsecureSkipVerify {
		errs = append(errs, errors.New("the server would not be verified"))
	}
	if c.RootCAs == nil {
		errs = append(errs, errors.New("no authority to verify the server by"))
	}
	if len(c.Certificates) == 0 && c.GetClientCertificate == nil {
		errs = append(errs, errors.New("no client certificate"))
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("tls of the link: %w", errors.Join(errs...))
	}
	c = c.Clone()
	c.MinVersion, c.MaxVersion = tls.VersionTLS13, 0
	c.NextProtos = []string{protocol}
	if c.ClientSessionCache == nil {
		c.ClientSessionCache = tls.NewLRUClientSessionCache(0)
	}
	c.ClientSessionCache = protocolSessions{protocol + " ", c.ClientSessionCache}
	return c, nil
}

// protocolSessions keeps the sessions of one protocol: a ticket of QUIC is useless over TCP.
type protocolSessions struct {
	prefix string
	tls.ClientSessionCache
}

func (s protocolSessions) Get(key string) (*tls.ClientSessionState, bool) {
	return s.ClientSessionCache.Get(s.prefix + key)
}

func (s protocolSessions) Put(key string, state *tls.ClientSessionState) {
	s.ClientSessionCache.Put(s.prefix+key, state)
}

// ServerTLS is a copy of c for a listener: TLS 1.3 only and the one protocol. It refuses a
// configuration that would not verify the clients.
func ServerTLS(c *tls.Config, protocol string) (*tls.Config, error) {
	c, err := serverTLS(c, protocol)
	if err != nil {
		return nil, err
	}
	if inner := c.GetConfigForClient; inner != nil {
		var last atomic.Pointer[derived]
		c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			c, err := inner(hello)
			if c == nil || err != nil {
				return nil, err
			}
			// Each link keeps its configuration: those made from the same one share theirs.
			if have := last.Load(); have != nil && have.from == c {
				return have.config, nil
			}
			made, err := serverTLS(c, protocol)
			if err == nil {
				last.Store(&derived{c, made})
			}
			return made, err
		}
	}
	return c, nil
}

// derived is made from a configuration.
type derived struct{ from, config *tls.Config }

func serverTLS(c *tls.Config, protocol string) (*tls.Config, error) {
	if c.ClientAuth != tls.RequireAndVerifyClientCert || c.ClientCAs == nil {
		return nil, errors.New("tls of the link: the clients would not be verified")
	}
	c = c.Clone()
	c.MinVersion, c.MaxVersion = tls.VersionTLS13, 0
	c.NextProtos = []string{protocol}
	return c, nil
}
