package hostile_test

import (
	"io"
	"net"
	"testing"
)

// server says its name to each connection, at a loopback address of its own, and notes them.
func server(t *testing.T, address, name string) (port string, connections chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	connections = make(chan struct{}, 1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			connections <- struct{}{}
			_, _ = io.WriteString(conn, name+"\n")
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	_, port, err = net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port, connections
}
