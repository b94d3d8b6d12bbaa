// Package cri connects to a container runtime by its own API (CRI), where Kubernetes' client has
// too little of it, and asks how it is. It has no state; a connection is its caller's, and may be
// used by many goroutines.
package cri

import (
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// MaxMessage bounds one message, in bytes, as the kubelet's own client does; a larger one is an
// error.
const MaxMessage = 16 << 20

// Dial makes a connection to the runtime at an endpoint as the kubelet has it
// ("unix:///run/containerd/containerd.sock"), which is opened when it is used.
func Dial(endpoint string) (*grpc.ClientConn, error) {
	if !strings.Contains(endpoint, "://") {
		endpoint = "unix://" + endpoint
	}
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage)))
	if err != nil {
		return nil, fmt.Errorf("opening the container runtime at %s: %w", endpoint, err)
	}
	return conn, nil
}
