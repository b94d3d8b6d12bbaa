package wslink

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// control sets TCP_NOTSENT_LOWAT (tcp(7)). A socket that was accepted does not inherit it from the one that listens.
func control(_, _ string, c syscall.RawConn) error {
	var err error
	if controlErr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsent)
	}); controlErr != nil {
		return controlErr
	}
	return err
}
