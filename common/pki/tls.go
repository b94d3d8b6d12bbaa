package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Server configures a TLS listener. Its functions are called for each handshake, so their results
// may change while it listens; a pool itself does not change once it was returned.
type Server struct {
	Certificate func() (*tls.Certificate, error)
	// ClientCAs verify the clients; nil: no client is asked for a certificate. A nil pool
	// refuses every client.
	ClientCAs func() *x509.CertPool
	// Now is the time by which clients are verified; nil: the system's.
	Now func() time.Time
	// Protocols are all that any user of the configuration negotiates by ALPN (RFC 7301), whatever
	// the user itself puts into NextProtos.
	Protocols []string
}

// ServerTLS is a configuration of TLS 1.3 only.
func ServerTLS(s Server) *tls.Config {
	cfg := &tls.Config{
		MinVersion:     tls.VersionTLS13,
		NextProtos:     s.Protocols,
		Time:           s.Now,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.Certificate() },
	}
	if s.ClientCAs == nil {
		return cfg
	}
	// For callers that only inspect the configuration; the one of the handshake is made below.
	cfg.ClientAuth = tls.RequireAndVerifyClientCert
	cfg.ClientCAs = x509.NewCertPool()
	var last atomic.Pointer[tls.Config]
	cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pool := s.ClientCAs()
		if pool == nil {
			return nil, errors.New("the client CA is not known yet")
		}
		// A connection keeps its configuration as long as it lives, so those of one pool share one.
		if have := last.Load(); have != nil && have.ClientCAs == pool {
			return have, nil
		}
		// crypto/tls keeps the tickets of the outer configuration for the inner one, so that
		// sessions are resumed.
		inner := &tls.Config{
			MinVersion:       tls.VersionTLS13,
			NextProtos:       s.Protocols,
			Time:             s.Now,
			GetCertificate:   cfg.GetCertificate,
			ClientAuth:       tls.RequireAndVerifyClientCert,
			ClientCAs:        pool,
			VerifyConnection: verifyAgain(pool, s.Now),
		}
		last.Store(inner)
		return inner, nil
	}
	return cfg
}

// verifyAgain judges the certificate of a resumed session as that of a new one: a ticket must not
// outlive the trust in its certificate.
func verifyAgain(pool *x509.CertPool, now func() time.Time) func(tls.ConnectionState) error {
	return func(cs tls.ConnectionState) error {
		if !cs.DidResume {
			return nil
		}
		if len(cs.PeerCertificates) == 0 {
			return errors.New("the resumed session has no client certificate")
		}
		opts := x509.VerifyOptions{
			Roots:         pool,
			Intermediates: Pool(cs.PeerCertificates[1:]...),
			KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		if now != nil {
			opts.CurrentTime = now()
		}
		if _, err := cs.PeerCertificates[0].Verify(opts); err != nil {
			return fmt.Errorf("verifying the client certificate of a resumed session: %w", err)
		}
		return nil
	}
}

// Client configures a client of a TLS server.
type Client struct {
	Roots *x509.CertPool
	// Certificate is called for each handshake; nil: the client has no certificate.
	Certificate func() (*tls.Certificate, error)
	// Now is the time by which the server is verified; nil: the system's.
	Now       func() time.Time
	Protocols []string
}

// ClientTLS is a configuration of TLS 1.3 only. The server's name is that which the dialer sets.
func ClientTLS(c Client) *tls.Config {
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    c.Roots,
		Time:       c.Now,
		NextProtos: c.Protocols,
	}
	if c.Certificate == nil {
		return cfg
	}
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.Certificate() }
	cfg.ClientSessionCache = &sessionCache{certificate: c.Certificate, inner: newSessions()}
	return cfg
}

// sessionCache drops its sessions when the client certificate changes: a ticket is for the
// certificate that was shown when it was made, so a resumed session would use the old one after a
// rotation.
type sessionCache struct {
	certificate func() (*tls.Certificate, error)

	mu    sync.Mutex
	made  *tls.Certificate // whose sessions inner holds
	inner tls.ClientSessionCache
}

// sessionsKept is for a handful of cloudcores, by two transports.
const sessionsKept = 16

func newSessions() tls.ClientSessionCache { return tls.NewLRUClientSessionCache(sessionsKept) }

func (s *sessionCache) current() tls.ClientSessionCache {
	cert, err := s.certificate()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || cert != s.made {
		s.made, s.inner = cert, newSessions()
	}
	return s.inner
}

func (s *sessionCache) Get(key string) (*tls.ClientSessionState, bool) { return s.current().Get(key) }

func (s *sessionCache) Put(key string, state *tls.ClientSessionState) { s.current().Put(key, state) }
