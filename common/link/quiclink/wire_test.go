package quiclink_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/quic-go/quic-go"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/link/quiclink"
)

func TestWire(t *testing.T) {
	s := linktest.NewSite(t)
	linktest.TestWire(t, func(t *testing.T, config link.Config) linktest.Wire {
		l := listen(t, quiclink.ListenConfig{Link: config, TLS: s.ServerTLS()})
		edge, cloud := linktest.Connect(t, l, newDialer(t, quiclink.DialConfig{Link: config, TLS: s.ClientTLS()}))
		secure := s.ClientTLS()
		secure.NextProtos = []string{fmt.Sprint("skerry/", link.Framing)}
		conn, err := quic.DialAddr(t.Context(), l.Addr().String(), secure, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.CloseWithError(0, "") })
		c, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close(link.CloseShutdown, "the test ended") })
		stream, err := conn.OpenUniStream()
		if err != nil {
			t.Fatal(err)
		}
		return linktest.Wire{
			Cloud: c, Healthy: linktest.Ends{Edge: edge, Cloud: cloud},
			Write:  func(b []byte) error { _, err := stream.Write(b); return err },
			Closed: func() (link.CloseCode, string) { return closedBy(t, conn) },
		}
	})
}

func closedBy(t *testing.T, conn *quic.Conn) (link.CloseCode, string) {
	t.Helper()
	<-conn.Context().Done()
	why, ok := errors.AsType[*quic.ApplicationError](context.Cause(conn.Context()))
	if !ok || !why.Remote {
		t.Fatalf("the connection ended by %v", context.Cause(conn.Context()))
	}
	return link.CloseCode(why.ErrorCode), why.ErrorMessage
}

// Streams that no link opens end it.
func TestWire_ForeignStreams(t *testing.T) {
	s := linktest.NewSite(t)
	for name, open := range map[string]func(*quic.Conn) error{
		"the stream ends": func(c *quic.Conn) error {
			stream, err := c.OpenUniStream()
			if err != nil {
				return err
			}
			if _, err := stream.Write([]byte{0}); err != nil {
				return err
			}
			return stream.Close()
		},
		"the stream is reset": func(c *quic.Conn) error {
			stream, err := c.OpenUniStream()
			if err != nil {
				return err
			}
			stream.CancelWrite(7)
			return nil
		},
		"a later stream alone": func(c *quic.Conn) error {
			for i := range 3 {
				stream, err := c.OpenUniStream()
				if err != nil {
					return err
				}
				if i < 2 {
					continue // the packet that opens it has been lost
				}
				if _, err := stream.Write([]byte{0xff, 0xff, 0xff}); err != nil {
					return err
				}
			}
			return nil
		},
		"one class twice": func(c *quic.Conn) error {
			for range 2 {
				stream, err := c.OpenUniStream()
				if err != nil {
					return err
				}
				if _, err := stream.Write([]byte{0, 0, 1}); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, quiclink.ListenConfig{TLS: s.ServerTLS()})
			secure := s.ClientTLS()
			secure.NextProtos = []string{fmt.Sprint("skerry/", link.Framing)}
			conn, err := quic.DialAddr(t.Context(), l.Addr().String(), secure, nil)
			if err != nil {
				t.Fatal(err)
			}
			c, err := l.Accept(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := open(conn); err != nil {
				t.Fatal(err)
			}
			<-c.Done()
			if code, _ := closedBy(t, conn); code != link.CloseProtocol {
				t.Errorf("the peer received close code %d", code)
			}
		})
	}
}
