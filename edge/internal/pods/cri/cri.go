// Package cri connects to a container runtime by its own API (CRI), where Kubernetes' client has
// too little of it, asks how it is, and leads the kubelet to its streams. Its connections are
// marked as edgecore's own, which the stop of the kubelet does not end (package peer). It has no
// state but that of Streams; a connection is its caller's, and may be used by many goroutines.
package cri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/skerry-io/skerry/edge/internal/pods/peer"
)

// MaxMessage bounds one message, in bytes, as the kubelet's own client does; a larger one is an
// error.
const MaxMessage = 16 << 20

// Dial makes a connection to the runtime at an endpoint as the kubelet has it
// ("unix:///run/containerd/containerd.sock"), which is opened when it is used.
func Dial(endpoint string) (*grpc.ClientConn, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	conn, err := grpc.NewClient("passthrough:///"+path, grpc.WithContextDialer(dial), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage)))
	if err != nil {
		return nil, fmt.Errorf("opening the container runtime at %s: %w", endpoint, err)
	}
	return conn, nil
}

func dial(ctx context.Context, path string) (net.Conn, error) {
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var marking error
		err := c.Control(func(fd uintptr) { marking = peer.Mark(int(fd)) })
		return errors.Join(err, marking)
	}}
	return dialer.DialContext(ctx, "unix", path)
}
