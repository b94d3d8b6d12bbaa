package clienthello_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/skerry-io/skerry/cloud/internal/access/clienthello"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/link/wslink"
	"github.com/skerry-io/skerry/common/topic"
)

// port runs a Mux whose servers send their name to each client that completes the handshake.
func port(t *testing.T, names ...string) (address string, site linktest.Site) {
	t.Helper()
	site = linktest.NewSite(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := clienthello.New(l)
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	var servers []net.Listener
	for _, name := range names {
		config := &tls.Config{Certificates: []tls.Certificate{site.Cloud}, NextProtos: []string{"http/1.1"}}
		if name == clienthello.Link {
			config = site.ServerTLS()
			config.NextProtos = []string{"http/1.1"}
		}
		server := m.Route(name)
		servers = append(servers, server)
		all.Go(func() {
			for {
				c, err := server.Accept()
				if err != nil {
					if !errors.Is(err, net.ErrClosed) {
						t.Error(err)
					}
					return
				}
				all.Go(func() {
					defer c.Close()
					_ = c.SetDeadline(time.Now().Add(10 * time.Second))
					_, _ = io.WriteString(tls.Server(c, config), "I am "+name)
				})
			}
		})
	}
	all.Go(func() {
		if err := m.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		for _, s := range servers {
			s.Close()
		}
		all.Wait()
	})
	return l.Addr().String(), site
}

func answer(t *testing.T, conn net.Conn) (string, error) {
	t.Helper()
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(conn)
	return string(b), err
}

func TestMux_ByOffer(t *testing.T) {
	at, site := port(t, clienthello.Link, clienthello.Join, "")
	for name, test := range map[string]struct {
		offered []string
		cert    bool
		want    string // "": no answer
	}{
		"a device with its certificate": {[]string{clienthello.Link, "http/1.1"}, true, "I am skerry-link"},
		"a device without one":          {[]string{clienthello.Link, "http/1.1"}, false, ""},
		"a device that joins":           {[]string{clienthello.Join, "http/1.1"}, false, "I am skerry-join"},
		"a browser":                     {[]string{"h2", "http/1.1"}, false, "I am "},
		"who offers nothing":            {nil, false, "I am "},
	} {
		t.Run(name, func(t *testing.T) {
			config := &tls.Config{RootCAs: site.Authority.Pool(), NextProtos: test.offered, ServerName: "127.0.0.1"}
			if test.cert {
				config.Certificates = []tls.Certificate{site.Edge}
			}
			conn, err := tls.Dial("tcp", at, config)
			got := ""
			if err == nil {
				if p := conn.ConnectionState().NegotiatedProtocol; test.offered != nil && p != "http/1.1" {
					t.Errorf("they speak %q", p)
				}
				got, err = answer(t, conn)
			}
			if got != test.want || test.want == "" && err == nil {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// pieces writes byte by byte: the hello comes in many packets.
type pieces struct{ net.Conn }

func (p pieces) Write(b []byte) (int, error) {
	for i := range b {
		if _, err := p.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(b), nil
}

func TestMux_HelloInPieces(t *testing.T) {
	at, site := port(t, clienthello.Join, "")
	raw, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(pieces{raw}, &tls.Config{RootCAs: site.Authority.Pool(), NextProtos: []string{clienthello.Join, "http/1.1"}, ServerName: "127.0.0.1"})
	if got, err := answer(t, conn); got != "I am skerry-join" {
		t.Errorf("got %q, %v", got, err)
	}
}

// Connections without TLS are closed, and silent clients keep no other client out.
func TestMux_NoHello(t *testing.T) {
	at, site := port(t, clienthello.Join, "")
	for _, said := range []string{"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x00\x02ab", "\x00", "SSH-2.0-x\r\n"} {
		conn, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, said); err != nil {
			t.Fatal(err)
		}
		if got, _ := answer(t, conn); got != "" {
			t.Errorf("%q is answered %q", said, got)
		}
	}
	var silent []net.Conn
	for range 600 {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		silent = append(silent, c)
	}
	// Above their share they are closed at once.
	last := silent[len(silent)-1]
	if err := last.SetReadDeadline(time.Now().Add(9 * time.Second)); err != nil { // before the others' time is over
		t.Fatal(err)
	}
	if _, err := last.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("all that say nothing are kept: %v", err)
	}
	for _, c := range silent {
		c.Close()
	}
	conn, err := tls.Dial("tcp", at, &tls.Config{RootCAs: site.Authority.Pool(), NextProtos: []string{clienthello.Join, "http/1.1"}, ServerName: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := answer(t, conn); got != "I am skerry-join" {
		t.Errorf("got %q, %v", got, err)
	}
}

func isTimeout(err error) bool {
	timer, ok := errors.AsType[net.Error](err)
	return ok && timer.Timeout()
}

// A link by the real transport, with others on the port; the servers' own ends do not end it.
func TestMux_CarriesLinks(t *testing.T) {
	site := linktest.NewSite(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := clienthello.New(l)
	config := wslink.ListenConfig{Link: link.Default().OfCloud(), TLS: site.ServerTLS(), Table: topic.NewTable(), Socket: m.Route(clienthello.Link)}
	links, err := wslink.Listen(t.Context(), "", config)
	if err != nil {
		t.Fatal(err)
	}
	m.Route("")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	dialer, err := wslink.NewDialer(wslink.DialConfig{Link: link.Default().OfEdge(), TLS: site.ClientTLS(), Table: topic.NewTable()})
	if err != nil {
		t.Fatal(err)
	}
	edge, cloud := linktest.Connect(t, links, dialer)
	if cloud.Info().Peer == nil || edge.Info().Remote.String() != l.Addr().String() {
		t.Errorf("the peer is %v, the link leads to %v", cloud.Info().Peer, edge.Info().Remote)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := links.Close(); err != nil {
		t.Error(err)
	}
	if cloud.Err() != nil || edge.Err() != nil {
		t.Errorf("the link has ended with the port: %v, %v", edge.Err(), cloud.Err())
	}
}
