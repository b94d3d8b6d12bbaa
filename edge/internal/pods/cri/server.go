package cri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"golang.org/x/sys/unix"
)

// Server is the process that serves the runtime at an endpoint (SO_PEERCRED, unix(7)): another one
// after each of its starts.
func Server(ctx context.Context, endpoint string) (pid int, err error) {
	conn, err := dial(ctx, strings.TrimPrefix(endpoint, "unix://"))
	if err != nil {
		return 0, fmt.Errorf("opening the container runtime at %s: %w", endpoint, err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var asking error
	err = raw.Control(func(fd uintptr) { peer, asking = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, asking); err != nil {
		return 0, fmt.Errorf("asking for the process of the container runtime at %s: %w", endpoint, err)
	}
	if peer.Pid == 0 {
		return 0, fmt.Errorf("the process of the container runtime at %s is in another PID namespace", endpoint)
	}
	return int(peer.Pid), nil
}
