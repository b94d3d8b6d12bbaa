package edged

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// echo is a runtime that returns each byte.
func echo(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	check(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
		}
	}()
}

// The kubelet reaches the runtime until it is stopped; then its open connections end, and a new one
// reaches nothing.
func TestRuntimeGate(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "gate")
	g := newRuntimeGate("unix://" + filepath.Join(dir, "runtime"))
	l, err := net.Listen("unix", socket)
	check(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- g.serve(ctx, l) }()
	answers := func(c net.Conn) error {
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		check(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		_, err := io.ReadFull(c, make([]byte, 1))
		return err
	}
	dial := func() net.Conn {
		c, err := net.Dial("unix", socket)
		check(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	if answers(dial()) == nil {
		t.Error("without a runtime a connection stays open")
	}
	echo(t, filepath.Join(dir, "runtime"))
	open := dial()
	check(t, answers(open))
	var most []net.Conn
	for range maxRuntimeConns - 1 {
		most = append(most, dial())
		check(t, answers(most[len(most)-1]))
	}
	if answers(dial()) == nil {
		t.Error("a connection above the bound is served")
	}
	check(t, most[0].Close())
	g.stop()
	if answers(open) == nil || answers(dial()) == nil {
		t.Error("the kubelet reaches the runtime after its stop")
	}
	cancel()
	check(t, <-served)
}
