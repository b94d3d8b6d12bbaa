package quiclink_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/quic-go/quic-go"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/link/quiclink"
	"github.com/skerry-io/skerry/common/topic"
)

// Clients must prove their address when many come at once; the only cost is a round trip.
func TestListener_ManyHandshakes(t *testing.T) {
	s := linktest.NewSite(t)
	l := listen(t, quiclink.ListenConfig{TLS: s.ServerTLS(), MaxHandshakes: 1})
	linktest.Connect(t, l, newDialer(t, quiclink.DialConfig{TLS: s.ClientTLS()}))
}

func TestListener_RefusesWithoutVerifiedCertificate(t *testing.T) {
	s, other := linktest.NewSite(t), linktest.NewSite(t)
	l := listen(t, quiclink.ListenConfig{TLS: s.ServerTLS()})
	for name, c := range map[string]*tls.Config{
		"no certificate":        {RootCAs: s.Authority.Pool()},
		"of another cluster":    {RootCAs: s.Authority.Pool(), Certificates: []tls.Certificate{other.Edge}},
		"a serving certificate": {RootCAs: s.Authority.Pool(), Certificates: []tls.Certificate{s.Cloud}},
		"trusts another":        {RootCAs: other.Authority.Pool(), Certificates: []tls.Certificate{s.Edge}},
	} {
		t.Run(name, func(t *testing.T) {
			c.NextProtos = []string{fmt.Sprint("skerry/", link.Framing)}
			conn, err := quic.DialAddr(t.Context(), l.Addr().String(), c, nil)
			if err != nil {
				return
			}
			<-conn.Context().Done() // a client has finished before the server has judged it
			if _, ok := errors.AsType[*quic.TransportError](context.Cause(conn.Context())); !ok {
				t.Errorf("ended by %v", context.Cause(conn.Context()))
			}
		})
	}
	linktest.Connect(t, l, newDialer(t, quiclink.DialConfig{TLS: s.ClientTLS()}))
	if l.Links() != 1 {
		t.Errorf("%d links, want 1", l.Links())
	}
}

func TestDial_Version(t *testing.T) {
	s := linktest.NewSite(t)
	c := s.ServerTLS()
	c.NextProtos = []string{"skerry/999"}
	l, err := quic.ListenAddr("127.0.0.1:0", c, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = newDialer(t, quiclink.DialConfig{TLS: s.ClientTLS()}).Dial(t.Context(), l.Addr().String())
	if why := linktest.CloseErrorOf(t, err); why.Code != link.CloseVersion {
		t.Errorf("refused by %v", why)
	}
}

// A server that died without a close and restarted resets the link at the edge's next packet.
func TestListener_StartedAnew(t *testing.T) {
	s := linktest.NewSite(t)
	key := &[32]byte{1, 2, 3}
	var udp net.PacketConn
	first := listen(t, quiclink.ListenConfig{TLS: s.ServerTLS(), ResetKey: key, Wrap: func(c net.PacketConn) net.PacketConn { udp = c; return c }})
	edge, _ := linktest.Connect(t, first, newDialer(t, quiclink.DialConfig{TLS: s.ClientTLS()}))
	if err := udp.Close(); err != nil { // as if it were killed: no CONNECTION_CLOSE is sent
		t.Fatal(err)
	}
	second, err := quiclink.Listen(context.Background(), first.Addr().String(), quiclink.ListenConfig{
		Link: link.Default(), TLS: s.ServerTLS(), Table: topic.NewTable(), ResetKey: key,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := edge.Send(t.Context(), linktest.Event(1, 1000)); err != nil {
		t.Fatal(err)
	}
	<-edge.Done()
	if why := linktest.CloseErrorOf(t, edge.Err()); why.Code != link.CloseShutdown || !why.Remote {
		t.Errorf("ended by %v", why)
	}
}

// A network that is away for a moment costs packets and no link. The kernel refuses packets
// during that time, which ends a plain quic-go connection.
func TestLink_SurvivesAFlap(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, for a network namespace of its own")
	}
	runtime.LockOSThread() // and never unlock it: the thread ends with its namespace
	before, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	own, err := netns.New()
	if err != nil {
		t.Skipf("no network namespace can be made: %v", err)
	}
	defer own.Close()
	defer func() {
		if netns.Set(before) == nil {
			runtime.UnlockOSThread()
		}
	}()
	handle, err := netlink.NewHandleAt(own)
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	lo, err := handle.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := handle.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}

	address, err := netlink.ParseAddr("10.99.0.1/32")
	if err != nil {
		t.Fatal(err)
	}
	if err := handle.AddrAdd(lo, address); err != nil {
		t.Fatal(err)
	}

	s := linktest.NewSite(t)
	l, err := quiclink.Listen(context.Background(), "10.99.0.1:0", quiclink.ListenConfig{
		Link: link.Default(), TLS: s.ServerTLS(), Table: topic.NewTable(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := s.ClientTLS()
	c.ServerName = "127.0.0.1" // the name in the certificate
	d := newDialer(t, quiclink.DialConfig{TLS: c})
	edge, cloud := linktest.Connect(t, l, d)
	if err := handle.AddrDel(lo, address); err != nil { // and with it goes the only route
		t.Fatal(err)
	}
	if err := errors.Join(edge.Send(t.Context(), linktest.Event(1, 100)), cloud.Send(t.Context(), linktest.Event(1, 100))); err != nil {
		t.Fatal(err)
	}
	for d.Lost() == 0 || l.Lost() == 0 {
		if err := errors.Join(edge.Err(), cloud.Err()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	if err := handle.AddrAdd(lo, address); err != nil {
		t.Fatal(err)
	}
	for _, c := range []link.Conn{edge, cloud} {
		if _, err := c.Receive(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
