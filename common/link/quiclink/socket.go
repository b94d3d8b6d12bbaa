package quiclink

import (
	"errors"
	"net"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// socket is a UDP socket on which the errors of a network that is away for a moment count as lost
// packets, which QUIC repairs. quic-go ends a connection at the first of them, where TCP would live
// on: a link that flaps for 3 s would cost every connection on it.
type socket struct {
	*net.UDPConn
	lost *atomic.Uint64
}

// Tolerant is such a socket for others that speak QUIC; lost counts.
func Tolerant(conn *net.UDPConn, lost *atomic.Uint64) net.PacketConn { return socket{conn, lost} }

func (s socket) WriteTo(b []byte, to net.Addr) (int, error) {
	n, err := s.UDPConn.WriteTo(b, to)
	if s.swallow(err) {
		return len(b), nil
	}
	return n, err
}

func (s socket) WriteMsgUDP(b, oob []byte, to *net.UDPAddr) (int, int, error) {
	n, oobn, err := s.UDPConn.WriteMsgUDP(b, oob, to)
	if s.swallow(err) {
		return len(b), len(oob), nil
	}
	return n, oobn, err
}

func (s socket) swallow(err error) bool {
	if err == nil || !transient(err) {
		return false
	}
	s.lost.Add(1)
	return true
}

// transient reports whether an error goes away by itself. EMSGSIZE and EIO don't belong here:
// quic-go learns from them (path MTU, segmentation offload).
func transient(err error) bool {
	for _, e := range []syscall.Errno{
		unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.EHOSTDOWN, unix.ENODEV, // no route, or no device, for now
		unix.EADDRNOTAVAIL, unix.EINVAL, // our address has gone: sendmsg with IP_PKTINFO for it
		unix.EPERM, unix.EACCES, // a firewall's rule
		unix.ENOBUFS, unix.ENOMEM, unix.EAGAIN, // no room
		unix.ECONNREFUSED, // the peer restarts
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
