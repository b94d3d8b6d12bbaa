package edged

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skerry-io/skerry/edge/internal/pods/cri"
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
// reaches nothing. What an earlier process has left at its path is no obstacle.
func TestRuntimeGate(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "gate")
	left, err := net.Listen("unix", link)
	check(t, err)
	left.(*net.UnixListener).SetUnlinkOnClose(false)
	check(t, left.Close())
	g := newRuntimeGate("unix://"+link, "unix://"+filepath.Join(dir, "runtime"))
	check(t, g.open())
	check(t, g.open())
	answers := func(c net.Conn) error {
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		check(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		_, err := io.ReadFull(c, make([]byte, 1))
		return err
	}
	if _, err := net.Dial("unix", link); err == nil {
		t.Error("without a runtime a connection is opened")
	}
	echo(t, filepath.Join(dir, "runtime"))
	echo(t, filepath.Join(dir, "other"))
	dial := func(name string) net.Conn {
		c, err := net.Dial("unix", filepath.Join(dir, name))
		check(t, err)
		t.Cleanup(func() { _ = c.Close() })
		check(t, answers(c))
		return c
	}
	open, other := dial("gate"), dial("other")
	g.stop(t.Context())
	if answers(open) == nil {
		t.Error("the kubelet's connection is open after its stop")
	}
	if _, err := net.Dial("unix", link); err == nil {
		t.Error("the kubelet reaches the runtime after its stop")
	}
	check(t, answers(other))
	// The shutdown connects after the stop, and the kubelet's module ends, which stops it, too.
	later := dial("runtime")
	g.stop(t.Context())
	check(t, answers(later))
	// A start that a stop has overtaken opens nothing.
	if err := g.open(); !errors.Is(err, errStopped) {
		t.Errorf("opened after its stop: %v", err)
	}
}

// waitingRuntime is a runtime whose version comes when it is told to.
type waitingRuntime struct {
	runtimev1.UnimplementedRuntimeServiceServer
	asked, answer chan struct{}
}

func (r *waitingRuntime) Version(context.Context, *runtimev1.VersionRequest) (*runtimev1.VersionResponse, error) {
	r.asked <- struct{}{}
	<-r.answer
	return &runtimev1.VersionResponse{}, nil
}

// A call of another part of edgecore goes on while the kubelet is stopped.
func TestRuntimeGateLeavesOurOwnCalls(t *testing.T) {
	dir := t.TempDir()
	endpoint := "unix://" + filepath.Join(dir, "runtime")
	l, err := net.Listen("unix", filepath.Join(dir, "runtime"))
	check(t, err)
	runtime := &waitingRuntime{asked: make(chan struct{}, 1), answer: make(chan struct{})}
	server := grpc.NewServer()
	runtimev1.RegisterRuntimeServiceServer(server, runtime)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	g := newRuntimeGate("unix://"+filepath.Join(dir, "gate"), endpoint)
	check(t, g.open())
	served := make(chan error, 1)
	go func() { served <- cri.Serves(t.Context(), endpoint) }()
	<-runtime.asked
	g.stop(t.Context())
	close(runtime.answer)
	check(t, <-served)
}
