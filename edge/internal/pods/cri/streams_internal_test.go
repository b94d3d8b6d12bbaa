package cri

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os/exec"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// answered returns the URL that the kubelet reads in an answer of the runtime.
func answered(t *testing.T, s *Streams, given string) string {
	t.Helper()
	raw, err := s.Marshal(&runtimeapi.ExecResponse{Url: given})
	check(t, err)
	defer raw.Free()
	var read runtimeapi.ExecResponse
	check(t, s.Unmarshal(raw, &read))
	return read.Url
}

// running returns streams that run until the test ends.
func running(t *testing.T) *Streams {
	t.Helper()
	s := NewStreams()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		check(t, <-ended)
	})
	for s.own.Load() == nil {
		time.Sleep(time.Millisecond)
	}
	return s
}

func TestStreams_onlyPlainAddressesAreLed(t *testing.T) {
	s := running(t)
	for _, given := range []string{"https://127.0.0.1:1234/exec/token", "http://runtime:1234/exec/token", "/exec/token", "", "http://127.0.0.1/exec", "http://[::1"} {
		if got := answered(t, s, given); got != given {
			t.Errorf("%q became %q", given, got)
		}
	}
	if got, want := answered(t, s, "http://127.0.0.1:1234/exec/token?a=b"), "http://"+s.own.Load().String()+"/exec/token?a=b"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := answered(t, NewStreams(), "http://127.0.0.1:1234/exec/token"); got != "http://127.0.0.1:1234/exec/token" {
		t.Errorf("%q without a server", got)
	}
}

// The runtime answers with more than its client reads at once and closes, and the kubelet, which is
// slow since its own client is, sends pings: it gets all of the answer.
func TestStreams_AnswerOfARuntimeThatHasClosed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	answer, closed := bytes.Repeat([]byte("answer"), 1<<19), make(chan struct{})
	go func() {
		defer close(closed)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		go io.Copy(io.Discard, c) // it reads for as long as its program writes
		_, _ = c.Write(answer)
	}()
	u, err := url.Parse(answered(t, running(t), "http://"+l.Addr().String()+"/exec/token"))
	check(t, err)
	kubelet, err := net.Dial("tcp", u.Host)
	check(t, err)
	defer kubelet.Close()

	got, b, pings := []byte(nil), make([]byte, 16<<10), 0
	for {
		n, err := kubelet.Read(b)
		got = append(got, b[:n]...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("after %d of %d bytes, and %d pings: %v", len(got), len(answer), pings, err)
		}
		select {
		case <-closed:
			pings++
			if _, err := kubelet.Write([]byte("ping")); err != nil {
				t.Fatalf("after %d of %d bytes, and %d pings: %v", len(got), len(answer), pings, err)
			}
		default:
		}
		time.Sleep(time.Millisecond)
	}
	if !bytes.Equal(got, answer) || pings == 0 {
		t.Errorf("%d of %d bytes, after %d pings", len(got), len(answer), pings)
	}
}

// Another process on the host gets nothing of the runtime.
func TestStreams_OthersAreRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "answer")
			c.Close()
		}
	}()
	s := running(t)
	answered(t, s, "http://"+l.Addr().String()+"/exec/token")
	own := s.own.Load()
	out, err := exec.Command("bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/%d; cat <&3", own.Addr(), own.Port())).Output()
	if len(out) > 0 { // cat fails where the connection is reset
		t.Errorf("another process got %q, %v", out, err)
	}
	conn, err := net.Dial("tcp", own.String())
	check(t, err)
	defer conn.Close()
	if got, err := io.ReadAll(conn); err != nil || string(got) != "answer" {
		t.Errorf("this process got %q, %v", got, err)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
