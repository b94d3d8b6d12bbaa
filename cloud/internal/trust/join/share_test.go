package join

import (
	"io"
	"net"
	"testing"
)

// Of one address so many connections are taken, and those of another are taken all the same.
func TestShareListener(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newShareListener(inner, 3)
	accepted := make(chan net.Conn, 10)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	defer func() { _ = l.Close(); <-done }()
	dial := func(from string) net.Conn {
		t.Helper()
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	var first net.Conn
	for range 3 {
		dial("127.0.0.2")
		first = <-accepted
	}
	if _, err := dial("127.0.0.2").Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the fourth connection of an address: %v; want it closed", err)
	}
	dial("127.0.0.3")
	other := <-accepted
	if got := other.RemoteAddr().(*net.TCPAddr).IP.String(); got != "127.0.0.3" {
		t.Errorf("a connection of %s was taken", got)
	}
	_, _ = first.Close(), first.Close() // twice: it gives back one share
	dial("127.0.0.2")
	<-accepted
	if _, err := dial("127.0.0.2").Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("one above the share, after another has ended: %v; want it closed", err)
	}
}
