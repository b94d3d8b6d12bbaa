package tunnel_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skerry-io/skerry/common/tunnel"
)

// tcpPair returns the two ends of a TCP connection.
func tcpPair(t *testing.T) (dialled, accepted net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if dialled, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if accepted, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialled.Close(); accepted.Close() })
	return dialled, accepted
}

// A server answers and closes, and its client, which is slow to read, sends something after that:
// the server's host resets the connection, and the client gets the whole answer all the same.
func TestSplice_AnswerOfAServerThatHasClosed(t *testing.T) {
	near, server := tcpPair(t)
	end, client := net.Pipe()
	ended := make(chan struct{})
	go func() { defer close(ended); tunnel.Splice(t.Context(), end, near) }()

	answer := bytes.Repeat([]byte("answer"), 8<<10)
	if _, err := server.Write(answer); err != nil {
		t.Fatal(err)
	}
	// All of it is in the buffers of this end before the server closes.
	got := make([]byte, 1)
	if _, err := io.ReadFull(client, got); err != nil {
		t.Fatal(err)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	for range 20 { // the first write after the reset is the one that fails
		_ = client.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err := client.Write([]byte("ping")); err != nil {
			break
		}
		time.Sleep(time.Millisecond) // for the reset to come
	}
	_ = client.SetReadDeadline(time.Now().Add(time.Minute))
	rest, err := io.ReadAll(client)
	if err != nil || !bytes.Equal(append(got, rest...), answer) {
		t.Errorf("%d of %d bytes, %v", len(rest)+1, len(answer), err)
	}
	<-ended
}

// The whole answer is on its way to a client that reads nothing yet, and sends pings to a server
// that is gone: its connection stays until it closes it, or a reset would drop the answer.
func TestSplice_ClientReadsLate(t *testing.T) {
	near, server := tcpPair(t)
	client, end := tcpPair(t)
	ended, all := make(chan struct{}), make(chan struct{})
	go func() { defer close(ended); tunnel.Splice(t.Context(), end, &readToEnd{Conn: near, end: all}) }()

	answer := bytes.Repeat([]byte("answer"), 100<<10)
	go func() {
		_, _ = server.Write(answer)
		_ = server.Close()
	}()
	<-all
	for range 100 {
		if _, err := client.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	got, err := io.ReadAll(client)
	if err != nil || !bytes.Equal(got, answer) {
		t.Errorf("%d of %d bytes, %v", len(got), len(answer), err)
	}
	client.Close()
	<-ended
}

// readToEnd closes its channel when all has been read from a connection.
type readToEnd struct {
	net.Conn
	end chan struct{}
}

func (c *readToEnd) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if errors.Is(err, io.EOF) {
		close(c.end)
	}
	return n, err
}

func (c *readToEnd) CloseWrite() error { return c.Conn.(*net.TCPConn).CloseWrite() }

// A client that goes on sending after the end of the answer keeps the connections for a bounded
// time.
func TestSplice_ClientThatNeverCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, end := net.Pipe()
		ended, began := make(chan struct{}), time.Now()
		go func() { defer close(ended); tunnel.Splice(t.Context(), halfPipe{end}, &gone{}) }()
		var pings sync.WaitGroup
		pings.Go(func() {
			for {
				if _, err := client.Write([]byte("ping")); err != nil {
					return
				}
				time.Sleep(5 * time.Second)
			}
		})
		<-ended
		if took := time.Since(began); took < time.Minute || took > time.Hour {
			t.Errorf("Splice ended after %v", took)
		}
		pings.Wait()
	})
}

// A server whose client is gone is not heard to the end of its answer.
func TestSplice_ServerWithoutAClient(t *testing.T) {
	near, server := tcpPair(t)
	ended := make(chan struct{})
	go func() { defer close(ended); tunnel.Splice(t.Context(), &gone{}, near) }()
	for answer := bytes.Repeat([]byte("answer"), 1<<10); ; {
		if _, err := server.Write(answer); err != nil {
			break
		}
	}
	<-ended
}

// halfPipe can end one direction; its peer does not notice.
type halfPipe struct{ net.Conn }

func (halfPipe) CloseWrite() error { return nil }

// gone is a connection to a server that takes no bytes, and whose answer is read to its end.
type gone struct{ net.Conn }

func (*gone) Read([]byte) (int, error)  { return 0, io.EOF }
func (*gone) Write([]byte) (int, error) { return 0, syscall.EPIPE }
func (*gone) Close() error              { return nil }
func (*gone) CloseWrite() error         { return nil }

// Where one end is gone Splice ends, whether the other has something to write or not.
func TestSplice_EndsWithEitherEnd(t *testing.T) {
	for name, gone := range map[string]func(client net.Conn, server *net.TCPConn, cancel func()){
		"the client, and then the server": func(client net.Conn, server *net.TCPConn, _ func()) {
			client.Close()
			_, _ = io.Copy(io.Discard, server) // until the end of the client is handed on
			server.Close()
		},
		"the server":               func(_ net.Conn, server *net.TCPConn, _ func()) { server.Close() },
		"the server, by reset":     func(_ net.Conn, server *net.TCPConn, _ func()) { _ = server.SetLinger(0); server.Close() },
		"neither, but the context": func(_ net.Conn, _ *net.TCPConn, cancel func()) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			near, server := tcpPair(t)
			end, client := net.Pipe()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan struct{})
			go func() { defer close(ended); tunnel.Splice(ctx, end, near) }()
			gone(client, server.(*net.TCPConn), cancel)
			<-ended
		})
	}
}
