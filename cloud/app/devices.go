package app

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"

	"github.com/skerry-io/skerry/cloud/internal/access/clienthello"
	"github.com/skerry-io/skerry/common/httpserver"
	"github.com/skerry-io/skerry/common/pki"
)

// strangersAtOnce bounds the connections of clients that are no devices: load balancers that look
// whether the port answers.
const strangersAtOnce = 64

// devicePort is the one port by which devices come.
type devicePort struct {
	mux                     *clienthello.Mux
	links, joins, strangers net.Listener
	port                    int // by which devices find it
}

func listenForDevices(at string, port int) (*devicePort, error) {
	l, err := (&net.ListenConfig{KeepAlive: -1}).Listen(context.Background(), "tcp", at) // links have their own keepalive
	if err != nil {
		return nil, err
	}
	if own, ok := l.Addr().(*net.TCPAddr); ok && port == 0 {
		port = own.Port
	}
	m := clienthello.New(l)
	return &devicePort{mux: m, links: m.Route(clienthello.Link), joins: m.Route(clienthello.Join), strangers: m.Route(""), port: port}, nil
}

// addresses are where devices find the port, by each of the hosts.
func (d *devicePort) addresses(hosts []string) []string {
	all := make([]string, len(hosts))
	for i, host := range hosts {
		all[i] = net.JoinHostPort(host, strconv.Itoa(d.port))
	}
	return all
}

// run routes connections to their servers, and answers clients that offer none of their protocols:
// /healthz alone.
func (d *devicePort) run(ctx context.Context, certificate func() (*tls.Certificate, error)) error {
	handler := http.NewServeMux()
	handler.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: 10 * time.Second,
		MaxHeaderBytes: 8 << 10, BaseContext: func(net.Listener) context.Context { return ctx },
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.mux.Run(ctx) })
	g.Go(func() error {
		secure := pki.ServerTLS(pki.Server{Certificate: certificate, Protocols: []string{"http/1.1"}})
		err := httpserver.Serve(ctx, server, tls.NewListener(netutil.LimitListener(d.strangers, strangersAtOnce), secure), "devices")
		if errors.Is(err, net.ErrClosed) && ctx.Err() != nil {
			return nil
		}
		return err
	})
	return g.Wait()
}

func (d *devicePort) close() { _ = d.mux.Close() }
