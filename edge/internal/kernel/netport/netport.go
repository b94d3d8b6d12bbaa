// Package netport switches the device's network ports on for applications that are given one.
//
// It owns nothing: a port that is on stays on. It refuses the loopback interface. Up may be called
// from any goroutine, and sees the network namespace of the calling thread.
package netport

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// Up switches a port on. One that an application has is in the application's own network namespace,
// and is missing here: ErrMissing.
func Up(name string) error {
	l, err := netlink.LinkByName(name)
	if _, ok := errors.AsType[netlink.LinkNotFoundError](err); ok {
		return fmt.Errorf("interface %s: %w", name, ErrMissing)
	}
	if err != nil {
		return fmt.Errorf("finding interface %s: %w", name, err)
	}
	const loopback = 8 // IFF_LOOPBACK of netdevice(7)
	if l.Attrs().RawFlags&loopback != 0 {
		return fmt.Errorf("interface %s is the loopback interface", name)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("switching interface %s on: %w", name, err)
	}
	return nil
}

// ErrMissing says that the device has no interface of that name.
var ErrMissing = errors.New("this device has none of that name")
