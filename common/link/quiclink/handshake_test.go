package quiclink_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"runtime"
	"sync/atomic"
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

func closeErrorOf(t *testing.T, err error) *link.CloseError {
	t.Helper()
	why, ok := errors.AsType[*link.CloseError](err)
	if !ok {
		t.Fatalf("got %v, want a CloseError in it", err)
	}
	return why
}

func TestListener_TooManyLinks(t *testing.T) {
	s := newSite(t)
	l := listen(t, quiclink.ListenConfig{TLS: s.serverTLS(), MaxLinks: 1})
	d := newDialer(t, quiclink.DialConfig{TLS: s.clientTLS()})
	edge, _ := connect(t, l, d)
	_, err := d.Dial(t.Context(), l.Addr().String())
	if why := closeErrorOf(t, err); why.Code != link.CloseOverloaded {
		t.Errorf("refused by %v", why)
	}
	if err := edge.Close(link.CloseShutdown, "room for another"); err != nil {
		t.Fatal(err)
	}
	for l.Links() != 0 { // the cloud's end goes in its own time
		time.Sleep(time.Millisecond)
	}
	connect(t, l, d)
}

// Clients must prove their address when many come at once; that costs a round trip and nothing else.
func TestListener_ManyHandshakes(t *testing.T) {
	s := newSite(t)
	l := listen(t, quiclink.ListenConfig{TLS: s.serverTLS(), MaxHandshakes: 1})
	connect(t, l, newDialer(t, quiclink.DialConfig{TLS: s.clientTLS()}))
}

func TestListener_RefusesWithoutVerifiedCertificate(t *testing.T) {
	s, other := newSite(t), newSite(t)
	l := listen(t, quiclink.ListenConfig{TLS: s.serverTLS()})
	for name, c := range map[string]*tls.Config{
		"no certificate":        {RootCAs: s.authority.Pool()},
		"of another cluster":    {RootCAs: s.authority.Pool(), Certificates: []tls.Certificate{other.edge}},
		"a serving certificate": {RootCAs: s.authority.Pool(), Certificates: []tls.Certificate{s.cloud}},
		"trusts another":        {RootCAs: other.authority.Pool(), Certificates: []tls.Certificate{s.edge}},
	} {
		t.Run(name, func(t *testing.T) {
			c.NextProtos = []string{"skerry/1"}
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
	connect(t, l, newDialer(t, quiclink.DialConfig{TLS: s.clientTLS()}))
	if l.Links() != 1 {
		t.Errorf("%d links, want 1", l.Links())
	}
}

func TestDial_Version(t *testing.T) {
	s := newSite(t)
	c := s.serverTLS()
	c.NextProtos = []string{"skerry/999"}
	l, err := quic.ListenAddr("127.0.0.1:0", c, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = newDialer(t, quiclink.DialConfig{TLS: s.clientTLS()}).Dial(t.Context(), l.Addr().String())
	if why := closeErrorOf(t, err); why.Code != link.CloseVersion {
		t.Errorf("refused by %v", why)
	}
}

func TestDial_SilentServer(t *testing.T) {
	s := newSite(t)
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	config := link.Default()
	config.HandshakeTimeout = 100 * time.Millisecond
	if _, err := newDialer(t, quiclink.DialConfig{Link: config, TLS: s.clientTLS()}).Dial(t.Context(), silent.LocalAddr().String()); err == nil {
		t.Error("a link to a silent server")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	time.AfterFunc(50*time.Millisecond, func() { cancel(enough) })
	if _, err := newDialer(t, quiclink.DialConfig{TLS: s.clientTLS()}).Dial(ctx, silent.LocalAddr().String()); !errors.Is(err, enough) {
		t.Errorf("Dial: %v, want the cause of its context", err)
	}
}

func TestDial_ResumesTheSession(t *testing.T) {
	s := newSite(t)
	l := listen(t, quiclink.ListenConfig{TLS: s.serverTLS()})
	c := s.clientTLS()
	var resumed atomic.Int32
	c.VerifyConnection = func(state tls.ConnectionState) error {
		if state.DidResume {
			resumed.Add(1)
		}
		return nil
	}
	d := newDialer(t, quiclink.DialConfig{TLS: c})
	for i := range 2 {
		edge, cloud := connect(t, l, d)
		if got := cloud.Info().Peer; !got.Equal(s.edge.Leaf) {
			t.Errorf("link %d is of %v", i, got.Subject)
		}
		// The ticket comes after the handshake: before the answer to the first message.
		for _, c := range [][2]link.Conn{{edge, cloud}, {cloud, edge}} {
			if err := c[0].Send(t.Context(), linktest.Event(1, 10)); err != nil {
				t.Fatal(err)
			}
			if _, err := c[1].Receive(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if resumed.Load() != 1 {
		t.Errorf("%d sessions were resumed, want 1", resumed.Load())
	}
}

// A server that died without a word and came back tells the edge at its next packet.
func TestListener_StartedAnew(t *testing.T) {
	s := newSite(t)
	key := &[32]byte{1, 2, 3}
	var udp net.PacketConn
	first := listen(t, quiclink.ListenConfig{TLS: s.serverTLS(), ResetKey: key, Wrap: func(c net.PacketConn) net.PacketConn { udp = c; return c }})
	edge, _ := connect(t, first, newDialer(t, quiclink.DialConfig{TLS: s.clientTLS()}))
	if err := udp.Close(); err != nil { // as if it were killed: its links are told nothing
		t.Fatal(err)
	}
	second, err := quiclink.Listen(context.Background(), first.Addr().String(), quiclink.ListenConfig{
		Link: link.Default(), TLS: s.serverTLS(), Table: topic.NewTable(), ResetKey: key,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := edge.Send(t.Context(), linktest.Event(1, 1000)); err != nil {
		t.Fatal(err)
	}
	<-edge.Done()
	if why := closeErrorOf(t, edge.Err()); why.Code != link.CloseShutdown || !why.Remote {
		t.Errorf("ended by %v", why)
	}
}

// A network that is away for a moment costs packets and no link. The kernel refuses what is sent meanwhile, which ends a plain quic-go connection.
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

	s := newSite(t)
	l, err := quiclink.Listen(context.Background(), "10.99.0.1:0", quiclink.ListenConfig{Link: link.Default(), TLS: s.serverTLS(), Table: topic.NewTable()})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := s.clientTLS()
	c.ServerName = "127.0.0.1" // as the certificate says
	d := newDialer(t, quiclink.DialConfig{TLS: c})
	edge, cloud := connect(t, l, d)
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
