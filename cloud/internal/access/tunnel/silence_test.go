package tunnel_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/pki"
)

// mute is a connection that drops its packets on request.
type mute struct {
	net.Conn
	off atomic.Bool
}

func (m *mute) Write(b []byte) (int, error) {
	if m.off.Load() {
		return len(b), nil
	}
	return m.Conn.Write(b)
}

// A request on a connection that was kept ends soon after the network has fallen silent, long
// before the link is given up; a connection that a client has for itself, a terminal, waits for the
// network.
func TestDial_KeptConnectionEndsWhenTheEdgeIsSilent(t *testing.T) {
	w := newSystem(t)
	r := w.replica("a")
	uplink := new(mute)
	_, ended := attachOver(t, r, "edge1", w.secure("edge1"), linktest.PipeOptions{WrapEdge: func(c net.Conn) net.Conn { uplink.Conn = c; return uplink }})
	connect := func(protocols ...string) *tls.Conn {
		t.Helper()
		raw, err := r.tunnel.Dial(t.Context(), "edge1")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = raw.Close() })
		conn := tls.Client(raw, &tls.Config{RootCAs: pki.Pool(w.cluster.Certificate), ServerName: "edge1", NextProtos: protocols})
		w.talk(conn, "edge1")
		return conn
	}
	kept, terminal := connect("h2", "http/1.1"), connect("http/1.1")
	// While the edge answers, quiet connections stay open.
	if _, err := io.WriteString(kept, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(kept, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}

	uplink.off.Store(true)
	for _, conn := range []*tls.Conn{terminal, kept} {
		if _, err := io.WriteString(conn, "a request"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := kept.Read(make([]byte, 1)); err == nil {
		t.Error("the kept connection got an answer from a silent edge")
	}
	select {
	case <-ended:
		t.Error("the link was given up first")
	default:
	}
	if err := terminal.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := terminal.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the terminal ended too: %v", err)
	}
	if _, err := r.tunnel.Dial(t.Context(), "edge1"); err == nil {
		t.Error("a new connection is made")
	} else if want := "edge1 does not answer; it was last heard of at "; len(err.Error()) < len(want) || err.Error()[:len(want)] != want {
		t.Errorf("got %v", err)
	}
}
