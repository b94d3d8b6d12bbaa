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

// unwell is a runtime that serves, and reports its conditions.
type unwell struct {
	runtimev1.UnimplementedRuntimeServiceServer
	conditions []*runtimev1.RuntimeCondition
	err        error
}

func (u *unwell) Status(context.Context, *runtimev1.StatusRequest) (*runtimev1.StatusResponse, error) {
	return &runtimev1.StatusResponse{Status: &runtimev1.RuntimeStatus{Conditions: u.conditions}}, u.err
}

// A runtime that does not answer, or can't start pods, is reported with its reason.
func TestHealth(t *testing.T) {
	condition := func(kind string, status bool) *runtimev1.RuntimeCondition {
		return &runtimev1.RuntimeCondition{Type: kind, Status: status, Reason: "Because"}
	}
	for name, test := range map[string]struct {
		runtime *unwell
		want    string // "": it is well
	}{
		"well":           {&unwell{conditions: []*runtimev1.RuntimeCondition{condition(runtimev1.RuntimeReady, true), condition(runtimev1.NetworkReady, true)}}, ""},
		"does not serve": {&unwell{err: errors.New("no space left")}, "does not answer (no space left)"},
		"not ready":      {&unwell{conditions: []*runtimev1.RuntimeCondition{condition(runtimev1.RuntimeReady, false)}}, "container runtime is not ready: Because"},
		"no pod network": {&unwell{conditions: []*runtimev1.RuntimeCondition{condition(runtimev1.NetworkReady, false)}}, "pod network is not ready: Because"},
		"another kind":   {&unwell{conditions: []*runtimev1.RuntimeCondition{condition("Other", false)}}, ""},
	} {
		socket := filepath.Join(t.TempDir(), "containerd.sock")
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		runtimev1.RegisterRuntimeServiceServer(server, test.runtime)
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(listener) }()
		err = Health(t.Context(), "unix://"+socket)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if err := Health(t.Context(), "unix://"+filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("dead: %v", err)
	}
}
