package cri

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// starting is a runtime that accepts connections and does not serve its API yet.
type starting struct {
	runtimev1.UnimplementedRuntimeServiceServer
	ready atomic.Bool
}

func (s *starting) Version(context.Context, *runtimev1.VersionRequest) (*runtimev1.VersionResponse, error) {
	if !s.ready.Load() {
		return nil, errors.New("server is not initialized yet")
	}
	return &runtimev1.VersionResponse{Version: "0.1.0", RuntimeName: "containerd"}, nil
}

func TestServes(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "containerd.sock")
	endpoint := "unix://" + socket
	if err := Serves(t.Context(), endpoint); err == nil || !strings.Contains(err.Error(), endpoint) {
		t.Errorf("without a runtime: %v", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	runtime := &starting{}
	server := grpc.NewServer()
	runtimev1.RegisterRuntimeServiceServer(server, runtime)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	if err := Serves(t.Context(), endpoint); err == nil || !strings.Contains(err.Error(), "server is not initialized yet") {
		t.Errorf("a runtime that starts: %v", err)
	}
	runtime.ready.Store(true)
	if err := Serves(t.Context(), endpoint); err != nil {
		t.Errorf("a runtime that serves: %v", err)
	}
	server.Stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
