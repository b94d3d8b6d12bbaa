package sockdiag_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/sockdiag"
)

func pair(t *testing.T, network, address string) (dialled, accepted *net.TCPConn) {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", net.JoinHostPort(map[string]string{"[::1]:0": "::1"}[address], port(l)))
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	return near.(*net.TCPConn), far.(*net.TCPConn)
}

func port(l net.Listener) string {
	_, p, _ := net.SplitHostPort(l.Addr().String())
	return p
}

// The other end is an orphan from its close on, whether its bytes have been read or not; a half
// closed one is none.
func TestOrphaned(t *testing.T) {
	for name, listen := range map[string]struct{ network, address string }{
		"IPv4":                   {"tcp4", "127.0.0.1:0"},
		"IPv6":                   {"tcp6", "[::1]:0"},
		"IPv4 at an IPv6 socket": {"tcp", ":0"},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := pair(t, listen.network, listen.address)
			check := func(when string, want bool) {
				t.Helper()
				if got, err := sockdiag.Orphaned(near); err != nil || got != want {
					t.Errorf("%s: %v, %v; want %v", when, got, err, want)
				}
			}
			check("open", false)
			if own, err := sockdiag.Own(near); err != nil || !own {
				t.Errorf("a socket of this process is another's: %v, %v", own, err)
			}
			if n, err := sockdiag.Unread(near); n != 0 || err != nil {
				t.Errorf("%d bytes are unread before any was written, %v", n, err)
			}
			written := fill(t, far)
			check("full", false)
			if n, err := sockdiag.Unread(near); n == 0 || err != nil {
				t.Errorf("%d bytes are unread, %v", n, err)
			}
			if err := far.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			check("half closed", false)
			if err := far.Close(); err != nil {
				t.Fatal(err)
			}
			check("closed", true)
			if n, err := io.Copy(io.Discard, near); err != nil || n != int64(written) {
				t.Errorf("read %d of %d bytes, %v", n, written, err)
			}
			if err := near.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// fill writes until the kernel takes no more.
func fill(t *testing.T, conn net.Conn) (written int) {
	t.Helper()
	if err := conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	block := bytes.Repeat([]byte("answer"), 10<<10)
	for {
		n, err := conn.Write(block)
		written += n
		if err != nil {
			return written
		}
	}
}

// A server answers with more than the kernel takes at once and closes: bytes that its client sends
// meanwhile cost it nothing of the answer, below TLS too. Before, they arrive.
func TestAnswer(t *testing.T) {
	for name, secure := range map[string]bool{"TCP": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			near, far := pair(t, "tcp4", "127.0.0.1:0")
			var client, server net.Conn = near, far
			if secure {
				cert := testcert(t)
				server = tls.Server(far, &tls.Config{Certificates: []tls.Certificate{cert}})
				client = tls.Client(near, &tls.Config{InsecureSkipVerify: true})
			}
			a := sockdiag.KeepAnswer(client)
			answer := bytes.Repeat([]byte("answer"), 1<<17)
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				question := make([]byte, 8)
				if _, err := io.ReadFull(server, question); err != nil || string(question) != "question" {
					t.Errorf("the server got %q, %v", question, err)
				}
				_, _ = server.Write(answer)
				_ = server.Close()
			}()
			if _, err := io.WriteString(a, "question"); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 1)
			if _, err := io.ReadFull(a, got); err != nil {
				t.Fatal(err)
			}
			<-closed
			for range 3 {
				if _, err := io.WriteString(a, "ping"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Millisecond) // for a reset to come
			}
			rest, err := io.ReadAll(a)
			if err != nil || !bytes.Equal(append(got, rest...), answer) {
				t.Errorf("%d of %d bytes, %v", len(rest)+1, len(answer), err)
			}
		})
	}
}

func testcert(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1)}, &x509.Certificate{}, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}
}

// Another process' socket is not our own.
func TestOwn_another(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := exec.Command("bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/"+port(l)+"; read -u 3")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if own, err := sockdiag.Own(conn.(*net.TCPConn)); err != nil || own {
		t.Errorf("got %v, %v", own, err)
	}
}

// No TCP, no Answer.
func TestKeepAnswer_noTCP(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if got := sockdiag.KeepAnswer(a); got != a {
		t.Errorf("got %T", got)
	}
}

func BenchmarkOrphaned(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	for b.Loop() {
		if _, err := sockdiag.Orphaned(c.(*net.TCPConn)); err != nil {
			b.Fatal(err)
		}
	}
}
