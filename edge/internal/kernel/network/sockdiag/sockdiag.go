// Package sockdiag reads the state of TCP sockets of this host from the kernel, by sock_diag(7),
// and keeps the answers of servers that close their connections while they are still on their way.
//
// It owns no state, and closes no socket of others. Its functions may be called from any goroutine;
// they see the network namespace of the calling thread.
package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The messages of linux/inet_diag.h: inet_diag_req_v2, and inet_diag_msg, whose last field is the
// socket's inode.
const (
	sizeOfRequest = 56
	sizeOfReply   = 72
	inodeAt       = sizeOfReply - 4
)

// Orphaned reports whether the other end of conn is a socket of this host that its process has
// closed (an orphan, tcp(7)): nobody reads from it any more, and the kernel still sends the rest of
// what was written to it. At the first byte that arrives there it drops that rest, and resets the
// connection. It is false where the kernel knows no such socket, or can't be asked for one
// (CONFIG_INET_DIAG).
func Orphaned(conn *net.TCPConn) (bool, error) {
	inode, known, err := otherEnd(conn)
	return known && inode == 0, err
}

// Own reports whether the other end of conn is a socket of this process. It is true where the
// kernel knows no such socket, or can't be asked for one.
func Own(conn *net.TCPConn) (bool, error) {
	inode, known, err := otherEnd(conn)
	if err != nil || !known {
		return err == nil, err
	}
	const dir, socket = "/proc/self/fd", "socket:[%d]" // proc_pid_fd(5)
	files, err := os.ReadDir(dir)
	if err != nil {
		return false, fmt.Errorf("listing the sockets of this process: %w", err)
	}
	return slices.ContainsFunc(files, func(f os.DirEntry) bool {
		target, err := os.Readlink(filepath.Join(dir, f.Name()))
		return err == nil && target == fmt.Sprintf(socket, inode)
	}), nil
}

// otherEnd is the inode of the socket at the other end; 0 for an orphan.
func otherEnd(conn *net.TCPConn) (inode uint32, known bool, err error) {
	local, remote := conn.LocalAddr().(*net.TCPAddr).AddrPort(), conn.RemoteAddr().(*net.TCPAddr).AddrPort()
	req := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, 0)
	req.AddRawData(request(remote, local))
	replies, err := req.Execute(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY)
	switch {
	case errors.Is(err, unix.ENOENT):
		return 0, false, nil
	case err != nil:
		return 0, false, fmt.Errorf("reading the state of the socket at %s: %w", remote, err)
	case len(replies) != 1 || len(replies[0]) < sizeOfReply:
		return 0, false, fmt.Errorf("reading the state of the socket at %s: unexpected answer", remote)
	}
	return binary.NativeEndian.Uint32(replies[0][inodeAt:]), true, nil
}

// Unread is how many bytes have arrived at conn and are not read yet (SIOCINQ, tcp(7)). A sender
// within this host has none left to send where it is 0: the kernel moves them on as soon as there
// is room.
func Unread(conn syscall.Conn) (int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	n, errAsked := 0, error(nil)
	if err := raw.Control(func(fd uintptr) { n, errAsked = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil {
		return 0, err
	}
	return n, errAsked
}

// request asks for the one socket at local that is connected to remote.
func request(local, remote netip.AddrPort) []byte {
	from, to := local.Addr().Unmap(), remote.Addr().Unmap()
	family := byte(unix.AF_INET)
	if from.Is6() {
		family = unix.AF_INET6
	}
	b := make([]byte, 0, sizeOfRequest)
	b = append(b, family, unix.IPPROTO_TCP, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, 1<<32-1) // in any state
	b = binary.BigEndian.AppendUint16(b, local.Port())
	b = binary.BigEndian.AppendUint16(b, remote.Port())
	for _, a := range []netip.Addr{from, to} {
		var address [16]byte
		copy(address[:], a.AsSlice())
		b = append(b, address[:]...)
	}
	b = binary.NativeEndian.AppendUint32(b, 0) // on any interface
	const noCookie = 1<<32 - 1                 // INET_DIAG_NOCOOKIE
	b = binary.NativeEndian.AppendUint32(b, noCookie)
	return binary.NativeEndian.AppendUint32(b, noCookie)
}
