package tunnel_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/skerry-io/skerry/common/link/linktest"
	common "github.com/skerry-io/skerry/common/tunnel"
	"github.com/skerry-io/skerry/edge/internal/tunnel"
)

// cloud is the other end of a link to a Tunnel.
func cloud(t *testing.T, kubelet string) *common.Mux {
	t.Helper()
	edgeConn, cloudConn := linktest.Pipe(t, linktest.PipeOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	handle, run := tunnel.New(tunnel.Config{Kubelet: func() string { return kubelet }}).Attach(edgeConn.Send)
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
	return mux
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
	s, err := cloud(t, l.Addr().String()).Open(t.Context(), tunnel.Kubelet)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got, err := io.ReadAll(s); err != nil || string(got) != "kubelet here" {
		t.Errorf("got %q, %v", got, err)
	}
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
	} {
		t.Run(name, func(t *testing.T) {
			_, err := cloud(t, test.kubelet).Open(t.Context(), test.target)
			if _, ok := errors.AsType[*common.Refused](err); !ok || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
