package cluster

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"
	"path/filepath"
	"testing"

	"github.com/skerry-io/skerry/tests/cluster/faultproxy"
)

// FaultProxy is a proxy before this kube-apiserver, with its certificate, and its address for a
// rest.Config's Host. It lets everything pass until it is set, and goes with the test.
func (c *ControlPlane) FaultProxy(t testing.TB) (proxy *faultproxy.Proxy, host string) {
	t.Helper()
	pki := filepath.Join(c.Dir, "pki")
	certificate, err := tls.LoadX509KeyPair(filepath.Join(pki, "apiserver.crt"), filepath.Join(pki, "apiserver.key"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := url.Parse(c.Server)
	if err != nil {
		t.Fatal(err)
	}
	if proxy, err = faultproxy.New(server, c.CA(), new(net.Dialer).DialContext); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- proxy.Serve(ctx, l, certificate) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return proxy, "https://" + l.Addr().String()
}
