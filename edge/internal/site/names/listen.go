package names

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// sockets are the two that queries come by.
type sockets struct {
	udp net.PacketConn
	tcp net.Listener
	// inherited: queries wait in both while nobody reads.
	inherited bool
}

// firstInherited is SD_LISTEN_FDS_START of sd_listen_fds(3).
const firstInherited = 3

// Inherited are the sockets that systemd (or a compatible parent) has opened before: queries wait
// in them while edgecore restarts. They stay open for as long as the process lives.
type Inherited struct{ files []*os.File }

// FromEnvironment finds the sockets of LISTEN_FDS (sd_listen_fds(3)); nil without any
// for this process.
func FromEnvironment() *Inherited {
	var in *Inherited
	for fd := range inherited() {
		if in == nil {
			in = &Inherited{}
		}
		unix.CloseOnExec(fd) // not for edgecore's child processes
		in.files = append(in.files, os.NewFile(uintptr(fd), "inherited "+strconv.Itoa(fd)))
	}
	return in
}

// inherited are the numbers of the sockets.
func inherited() iter.Seq[int] {
	return func(yield func(int) bool) {
		if pid, err := strconv.Atoi(os.Getenv("LISTEN_PID")); err != nil || pid != os.Getpid() {
			return
		}
		n, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
		if err != nil || n <= 0 || n > 64 {
			return
		}
		for i := range n {
			if !yield(firstInherited + i) {
				return
			}
		}
	}
}

// PassOn leaves the sockets open for the program executed in this process: it finds them as this
// one did.
func PassOn() {
	for fd := range inherited() {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
	}
}

// find duplicates the inherited sockets of an address; those that are missing are nil.
func (in *Inherited) find(at netip.AddrPort) (s sockets) {
	if in == nil {
		return s
	}
	for _, f := range in.files {
		if udp, err := net.FilePacketConn(f); err == nil {
			if a, ok := udp.LocalAddr().(*net.UDPAddr); ok && s.udp == nil && a.AddrPort() == at {
				s.udp = udp
				continue
			}
			_ = udp.Close()
		} else if tcp, err := net.FileListener(f); err == nil {
			if a, ok := tcp.Addr().(*net.TCPAddr); ok && s.tcp == nil && a.AddrPort() == at {
				s.tcp = tcp
				continue
			}
			_ = tcp.Close()
		}
	}
	return s
}

// open takes the inherited sockets, and makes those that are missing.
func open(ctx context.Context, at netip.AddrPort, in *Inherited) (sockets, error) {
	s := in.find(at)
	s.inherited = s.udp != nil && s.tcp != nil
	config := net.ListenConfig{Control: freebind}
	var err error
	if s.udp == nil {
		if s.udp, err = config.ListenPacket(ctx, "udp", at.String()); err != nil {
			err = taken(at, err)
		}
	}
	if err == nil && s.tcp == nil {
		if s.tcp, err = config.Listen(ctx, "tcp", at.String()); err != nil {
			err = taken(at, err)
		}
	}
	if err != nil {
		if s.udp != nil {
			_ = s.udp.Close()
		}
		if s.tcp != nil {
			_ = s.tcp.Close()
		}
		return sockets{}, err
	}
	return s, nil
}

// freebind allows binding to an address that the device gets later (ip(7), IP_FREEBIND).
func freebind(_, _ string, c syscall.RawConn) error {
	var err error
	if controlErr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) }); controlErr != nil {
		return controlErr
	}
	return err
}

// taken names the process that has the port.
func taken(at netip.AddrPort, err error) error {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("modules.names.listen: %w", err)
	}
	who := Holder(at.Port())
	if who == "" {
		who = "another program"
	}
	return fmt.Errorf("modules.names.listen: port %d of %s is taken by %s: %w", at.Port(), at.Addr(), who, err)
}
