package linktest

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skerry-io/skerry/common/link"
)

// CountingListener is a Listener that bounds its links.
type CountingListener interface {
	link.Listener
	Links() int
}

// Transport makes the listeners and dialers of one transport, for one test each.
type Transport struct {
	// Listen opens a listener on loopback for at most so many links, 0 for no bound.
	Listen func(t testing.TB, c *tls.Config, config link.Config, maxLinks int) CountingListener
	Dialer func(t testing.TB, c *tls.Config, config link.Config) link.Dialer
	// Silent opens a port that reads and never answers, and returns its address.
	Silent func(t testing.TB) string
}

// CloseErrorOf finds the CloseError in err.
func CloseErrorOf(t testing.TB, err error) *link.CloseError {
	t.Helper()
	why, ok := errors.AsType[*link.CloseError](err)
	if !ok {
		t.Fatalf("got %v, want a CloseError in it", err)
	}
	return why
}

// TestHandshake is the contract of a transport's Listener and Dialer.
func TestHandshake(t *testing.T, transport Transport) {
	s := NewSite(t)
	t.Run("too many links", func(t *testing.T) {
		l, d := transport.Listen(t, s.ServerTLS(), link.Default(), 1), transport.Dialer(t, s.ClientTLS(), link.Default())
		edge, _ := Connect(t, l, d)
		_, err := d.Dial(t.Context(), l.Addr().String())
		if why := CloseErrorOf(t, err); why.Code != link.CloseOverloaded || !why.Code.Reconnect() {
			t.Errorf("refused by %v", why)
		}
		if l.Links() != 1 {
			t.Errorf("%d links, want 1", l.Links())
		}
		if err := edge.Close(link.CloseShutdown, "room for another"); err != nil {
			t.Fatal(err)
		}
		for l.Links() != 0 { // the cloud's end goes in its own time
			time.Sleep(time.Millisecond)
		}
		Connect(t, l, d)
	})
	t.Run("a silent server", func(t *testing.T) {
		address := transport.Silent(t)
		config := link.Default()
		config.HandshakeTimeout = 100 * time.Millisecond
		if _, err := transport.Dialer(t, s.ClientTLS(), config).Dial(t.Context(), address); err == nil {
			t.Error("a link to a silent server")
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		enough := errors.New("enough")
		time.AfterFunc(50*time.Millisecond, func() { cancel(enough) })
		if _, err := transport.Dialer(t, s.ClientTLS(), link.Default()).Dial(ctx, address); !errors.Is(err, enough) {
			t.Errorf("Dial: %v, want the cause of its context", err)
		}
	})
	t.Run("a session is resumed", func(t *testing.T) {
		c := s.ClientTLS()
		var resumed atomic.Int32
		c.VerifyConnection = func(state tls.ConnectionState) error {
			if state.DidResume {
				resumed.Add(1)
			}
			return nil
		}
		l, d := transport.Listen(t, s.ServerTLS(), link.Default(), 0), transport.Dialer(t, c, link.Default())
		for i := range 2 {
			edge, cloud := Connect(t, l, d)
			if got := cloud.Info().Peer; !got.Equal(s.Edge.Leaf) {
				t.Errorf("link %d is of %v", i, got.Subject)
			}
			// The ticket comes after the handshake: before the answer to the first message.
			send(t, edge, heartbeat(1))
			receive(t, cloud)
			send(t, cloud, heartbeat(1))
			receive(t, edge)
		}
		if resumed.Load() != 1 {
			t.Errorf("%d sessions were resumed, want 1", resumed.Load())
		}
	})
	t.Run("closing the listener", func(t *testing.T) {
		l, d := transport.Listen(t, s.ServerTLS(), link.Default(), 0), transport.Dialer(t, s.ClientTLS(), link.Default())
		edge, cloud := Connect(t, l, d)
		ctx, cancel := context.WithCancelCause(t.Context())
		enough := errors.New("enough")
		cancel(enough)
		if _, err := l.Accept(ctx); !errors.Is(err, enough) {
			t.Errorf("Accept: %v, want the cause of its context", err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Accept(t.Context()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept: %v, want net.ErrClosed", err)
		}
		send(t, edge, heartbeat(1)) // links live on
		receive(t, cloud)
		config := link.Default()
		config.HandshakeTimeout = 200 * time.Millisecond
		if _, err := transport.Dialer(t, s.ClientTLS(), config).Dial(t.Context(), l.Addr().String()); err == nil {
			t.Error("a link to a closed listener")
		}
	})
}
