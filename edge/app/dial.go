package app

import (
	"context"
	"crypto/x509"
	"sync"

	"github.com/skerry-io/skerry/common/link"
)

// trusting is a dialer that is made anew when whom it trusts has changed: a TLS configuration in use can't be changed.
type trusting struct {
	roots func() *x509.CertPool
	make  func() (link.Dialer, error)

	mu     sync.Mutex
	dialer link.Dialer
	by     *x509.CertPool // what dialer trusts
}

// newTrusting also makes the first dialer, so that what is wrong with the configuration is told at once.
func newTrusting(roots func() *x509.CertPool, make func() (link.Dialer, error)) (*trusting, error) {
	t := &trusting{roots: roots, make: make}
	_, err := t.current()
	return t, err
}

func (t *trusting) current() (link.Dialer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if roots := t.roots(); roots != t.by {
		d, err := t.make()
		if err != nil {
			return nil, err
		}
		t.dialer, t.by = d, roots
	}
	return t.dialer, nil
}

// Dial implements link.Dialer.
func (t *trusting) Dial(ctx context.Context, address string) (link.Conn, error) {
	d, err := t.current()
	if err != nil {
		return nil, err
	}
	return d.Dial(ctx, address)
}
