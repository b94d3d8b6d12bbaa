package tunnel_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/skerry-io/skerry/common/link/linktest"
	common "github.com/skerry-io/skerry/common/tunnel"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/setup/tunnel"
)

// cloud is the other end of a link to a Tunnel.
func cloud(t *testing.T, kubelet string) (*common.Mux, *tunnel.Tunnel) {
	t.Helper()
	return cloudOf(t, tunnel.Config{Kubelet: func() string { return kubelet }})
}

func cloudOf(t *testing.T, config tunnel.Config) (*common.Mux, *tunnel.Tunnel) {
	t.Helper()
	edgeConn, cloudConn := linktest.Pipe(t, linktest.PipeOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	end := tunnel.New(config)
	handle, run := end.Attach(linkstate.Link{Streams: true}, edgeConn.Send)
	mux := common.New(cloudConn, common.Config{Peer: "edge1"})
	var all sync.WaitGroup
	all.Go(func() { run(ctx) })
	all.Go(func() { _ = mux.Run(ctx) })
	all.Go(func() {
		for {
			m, err := edgeConn.Receive(ctx)
			if err != nil {
				return
			}
			if err := handle(ctx, m); err != nil {
				t.Error(err)
			}
		}
	})
	all.Go(func() {
		for {
			m, err := cloudConn.Receive(ctx)
			if err != nil {
				return
			}
			if err := mux.Handle(ctx, m); err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(func() { cancel(); all.Wait() })
	return mux, end
}

func TestAttach_LeadsToTheKubelet(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "kubelet here")
	}()
	mux, end := cloud(t, l.Addr().String())
	s, err := mux.Open(t.Context(), tunnel.Kubelet)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(s); err != nil || string(got) != "kubelet here" {
		t.Errorf("got %q, %v", got, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for mux.Len() > 0 {
		time.Sleep(time.Millisecond)
	}
	want := `# HELP skerry_tunnel_bytes_total Bytes to the kubelet (sent) and from it (received).
# TYPE skerry_tunnel_bytes_total counter
skerry_tunnel_bytes_total{direction="received"} 12
skerry_tunnel_bytes_total{direction="sent"} 0
# HELP skerry_tunnel_streams_total Streams connected to the kubelet.
# TYPE skerry_tunnel_streams_total counter
skerry_tunnel_streams_total 1
`
	if err := testutil.CollectAndCompare(end, strings.NewReader(want), "skerry_tunnel_bytes_total", "skerry_tunnel_streams_total"); err != nil {
		t.Error(err)
	}
}

// The kubelet answers with more than the link takes at once and closes, as after an exec, and the
// client, which is slow to read, goes on sending pings: all of the answer comes.
func TestAttach_AnswerOfAKubeletThatHasClosed(t *testing.T) {
	answer := bytes.Repeat([]byte("answer"), 1<<19)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	closed := make(chan struct{})
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go io.Copy(io.Discard, c) // it reads for as long as its program writes
		_, _ = c.Write(answer)
		_ = c.Close()
		close(closed)
	}()
	mux, _ := cloud(t, l.Addr().String())
	s, err := mux.Open(t.Context(), tunnel.Kubelet)
	if err != nil {
		t.Fatal(err)
	}
	near, client := tcpPair(t)
	spliced := make(chan struct{})
	go func() { defer close(spliced); common.Splice(t.Context(), s, near) }()

	var got []byte
	b := make([]byte, 64<<10)
	pings := 0
	for {
		n, err := client.Read(b)
		got = append(got, b[:n]...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("after %d of %d bytes, and %d pings: %v", len(got), len(answer), pings, err)
		}
		select {
		case <-closed:
			if _, err := client.Write([]byte("ping")); err != nil {
				t.Fatalf("after %d of %d bytes, and %d pings: %v", len(got), len(answer), pings, err)
			}
			pings++
			time.Sleep(time.Millisecond)
		default: // the kernel's buffers are not full yet
		}
	}
	if !bytes.Equal(got, answer) || pings == 0 {
		t.Errorf("got %d of %d bytes, after %d pings", len(got), len(answer), pings)
	}
	client.Close()
	<-spliced
}

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

func TestAttach_RefusesAllElse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().String()
	l.Close()
	for name, test := range map[string]struct{ kubelet, target, want string }{
		"another target": {closed, "127.0.0.1:22", "not to \"127.0.0.1:22\""},
		"no kubelet":     {"", tunnel.Kubelet, "no kubelet"},
		"it is down":     {closed, tunnel.Kubelet, "the kubelet does not answer"},
		"switched off":   {closed, tunnel.Subresources, "modules.tunnel.subresources is false"},
	} {
		t.Run(name, func(t *testing.T) {
			mux, end := cloud(t, test.kubelet)
			_, err := mux.Open(t.Context(), test.target)
			if n := testutil.CollectAndCount(end, "skerry_tunnel_refused_total"); n != 1 {
				t.Errorf("%d refusals are counted", n)
			}
			if _, ok := errors.AsType[*common.Refused](err); !ok || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// The device's own client is a separate path to the kubelet, and a stream for it has no access to
// other targets.
func TestAttach_Subresources(t *testing.T) {
	near, far := net.Pipe()
	mux, _ := cloudOf(t, tunnel.Config{
		Kubelet:      func() string { return "127.0.0.1:1" },
		Subresources: func(context.Context) (net.Conn, error) { return near, nil },
	})
	go func() {
		_, _ = io.WriteString(far, "as the device")
		_ = far.Close()
	}()
	s, err := mux.Open(t.Context(), tunnel.Subresources)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(s); err != nil || string(got) != "as the device" {
		t.Errorf("got %q, %v", got, err)
	}
}

// The cloud may read the content of `edgecore status`; other paths are refused.
func TestAttach_Status(t *testing.T) {
	mux, _ := cloudOf(t, tunnel.Config{Status: func(accept string) ([]byte, string, error) {
		return []byte("status as " + accept), accept, nil
	}})
	for range 2 {
		s, err := mux.Open(t.Context(), tunnel.Status)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(s, "PUT /skerry/v1/maintenance HTTP/1.1\r\nHost: edgecore\r\nAccept: text/plain\r\nContent-Length: 4\r\n\r\ntrue"); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(s)
		if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 200 OK\r\n") || !strings.HasSuffix(string(got), "\r\n\r\nstatus as text/plain") {
			t.Errorf("got %q, %v", got, err)
		}
		_ = s.Close()
	}
	// A stream that closes without a request leaves no goroutine: the end of the session waits for
	// it.
	if _, err := mux.Open(t.Context(), tunnel.Status); err != nil {
		t.Fatal(err)
	}
}

// A bundle is streamed while it is packed; one that can't be packed is refused with the reason, and
// an interrupted one does not look complete.
func TestAttach_Bundle(t *testing.T) {
	for name, c := range map[string]struct {
		written string
		err     error
		want    string // of the answer; "": it breaks off
	}{
		"whole":      {"an archive", nil, "HTTP/1.1 200 OK"},
		"none":       {"", errors.New("another bundle is being packed"), "another bundle is being packed"},
		"breaks off": {"half an arch", errors.New("the disk is gone"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			mux, _ := cloudOf(t, tunnel.Config{Bundle: func(_ context.Context, w io.Writer) error {
				if c.written != "" {
					_, _ = io.WriteString(w, c.written)
				}
				return c.err
			}})
			s, err := mux.Open(t.Context(), tunnel.Bundle)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if _, err := io.WriteString(s, "GET / HTTP/1.1\r\nHost: edgecore\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(s)
			if err != nil {
				t.Fatal(err)
			}
			whole := strings.HasSuffix(string(got), "\r\n0\r\n\r\n")
			if whole != (c.want != "") || !strings.Contains(string(got), c.want) || !strings.Contains(string(got), c.written) {
				t.Errorf("got %q", got)
			}
		})
	}
}
