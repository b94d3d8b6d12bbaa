package peer_test

import (
	"io"
	"net"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/skerry-io/skerry/edge/internal/pods/peer"
)

func TestConnsAreFoundMarkedAndEnded(t *testing.T) {
	dir := t.TempDir()
	listen := func(name string) (path string, accepted chan net.Conn) {
		path, accepted = filepath.Join(dir, name), make(chan net.Conn, 4)
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				accepted <- c
			}
		}()
		return path, accepted
	}
	path, accepted := listen("a")
	other, _ := listen("b")
	var marking error
	marks := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { marking = peer.Mark(int(fd)) })
	}}
	dial := func(d net.Dialer, path string) net.Conn {
		c, err := d.DialContext(t.Context(), "unix", path)
		if err != nil || marking != nil {
			t.Fatal(err, marking)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	plain, own := dial(net.Dialer{}, path), dial(marks, path)
	dial(net.Dialer{}, other)
	for range 2 {
		c := <-accepted
		defer c.Close()
	}
	found := peer.Conns(func(address string) bool { return address == path })
	if len(found) != 2 {
		t.Fatalf("%d connections: %v", len(found), found)
	}
	for _, c := range found {
		if !c.Marked() {
			if err := c.Shutdown(); err != nil {
				t.Error(err)
			}
		}
		c.Close()
	}
	if _, err := plain.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the connection without a mark: %v", err)
	}
	if _, err := own.Write([]byte("x")); err != nil {
		t.Errorf("the marked one: %v", err)
	}
}
