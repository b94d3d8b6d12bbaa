// Package peer finds this process's connections to Unix sockets: the kubelet is in this process,
// and has no means to end a connection of its own.
//
// It owns nothing: a Conn is a copy of a descriptor, and its caller's to close. It refuses to close
// a connection's own descriptor, whose number may mean another file by then. It has no state, and
// may be used by many goroutines.
package peer

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Conn is a connection of this process. It stays the same, whatever the process does with its own
// descriptor.
type Conn struct {
	fd int
	// Address is the path at which the other end was bound, as that has it (unix(7)).
	Address string
}

// Conns returns the connections to sockets with the wanted addresses. The caller closes each.
func Conns(wanted func(address string) bool) []Conn {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	var all []Conn
	copies := map[int]bool{} // may have the number of the listed folder's own descriptor
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil || copies[n] {
			continue
		}
		fd, err := unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if address := addressOf(fd); address != "" && wanted(address) {
			all = append(all, Conn{fd, address})
			copies[fd] = true
			continue
		}
		_ = unix.Close(fd)
	}
	return all
}

// addressOf is the path to which a descriptor is connected, "" for any other.
func addressOf(fd int) string {
	peer, err := unix.Getpeername(fd)
	if err != nil {
		return ""
	}
	if at, ok := peer.(*unix.SockaddrUnix); ok && !strings.HasPrefix(at.Name, "@") {
		return at.Name
	}
	return ""
}

// Close closes the copy.
func (c Conn) Close() { _ = unix.Close(c.fd) }

// Shutdown ends the connection, for whoever uses it (shutdown(2)).
func (c Conn) Shutdown() error {
	if err := unix.Shutdown(c.fd, unix.SHUT_RDWR); err != nil {
		return fmt.Errorf("shutting down the connection to %s: %w", c.Address, err)
	}
	return nil
}

// Marked reports whether the connection was made with Mark.
func (c Conn) Marked() bool {
	priority, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_PRIORITY)
	return err == nil && priority == mark
}

// mark is a priority (socket(7), SO_PRIORITY), which means nothing to a Unix socket.
const mark = 1

// Mark marks a socket, before it is connected, as this program's own and not the kubelet's.
func Mark(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PRIORITY, mark) }
