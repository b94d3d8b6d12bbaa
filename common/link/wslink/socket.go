package wslink

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/common/link"
)

// control sets TCP_NOTSENT_LOWAT (tcp(7)). A socket that was accepted does not inherit it from the
// one that listens.
func control(_, _ string, c syscall.RawConn) error {
	var err error
	if controlErr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsent)
	}); controlErr != nil {
		return controlErr
	}
	return err
}

// smallSegment is an MSS that fits every path: 1,160 bytes with the headers of TCP and IPv4, which
// is less than IPv6's minimum MTU of 1,280 and than 1,500 minus the overhead of tunnels. It limits
// both directions, since the MSS option announces it to the peer.
const smallSegment = 1120

// small sets the options of control and a small MSS.
func small(network, address string, c syscall.RawConn) error {
	err := control(network, address, c)
	if controlErr := c.Control(func(fd uintptr) {
		err = errors.Join(err, unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, smallSegment))
	}); controlErr != nil {
		return controlErr
	}
	return err
}

// acknowledged returns a function that returns how long ago the peer's kernel acknowledged anything
// on c (tcpi_last_ack_recv of TCP_INFO, tcp(7)), exact to a tick of the kernel.
func acknowledged(c net.Conn) (func() (time.Duration, error), error) {
	tcp, ok := c.(syscall.Conn)
	if !ok {
		return nil, errors.New("it is no socket")
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	ago := func() (time.Duration, error) {
		var info *unix.TCPInfo
		var err error
		if controlErr := raw.Control(func(fd uintptr) {
			info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		}); controlErr != nil {
			return 0, controlErr
		}
		if err != nil {
			return 0, fmt.Errorf("reading TCP_INFO: %w", err)
		}
		return time.Duration(info.Last_ack_recv) * time.Millisecond, nil
	}
	_, err = ago()
	return ago, err
}

// Headers of a packet without options but TCP's timestamps: of Ethernet, IP and TCP.
const (
	headers4 = 14 + 20 + 32
	headers6 = 14 + 40 + 32
)

// Wire implements link.Wired by the counters of the kernel: segments and bytes, those that were
// sent again included. It can't tell a connection through a proxy from one without.
func (c *carrier) Wire() (w link.Wire, ok bool) {
	tcp, ok := beneath(c.raw.Conn).(syscall.Conn)
	if !ok {
		return w, false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return w, false
	}
	var info *unix.TCPInfo
	if controlErr := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); controlErr != nil || err != nil {
		return w, false
	}
	headers := uint64(headers4)
	if a, is := c.ws.RemoteAddr().(*net.TCPAddr); is && a.IP.To4() == nil {
		headers = headers6
	}
	return link.Wire{Sent: info.Bytes_sent + uint64(info.Segs_out)*headers, Received: info.Bytes_received + uint64(info.Segs_in)*headers}, true
}

// beneath is the connection that others are wrapped around.
func beneath(c net.Conn) net.Conn {
	for {
		w, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return c
		}
		c = w.NetConn()
	}
}
