// Package dump reads lists of the kernel that a change interrupts.
//
// A list comes in several reads. If it changes in between, as with every pod that starts or ends,
// the kernel marks it (NLM_F_DUMP_INTR, linux/netlink.h): it may lack entries that existed all the
// time. Then it is read again.
//
// It owns no state. It refuses a list that changes in each of a number of readings. Its functions
// may be called from any goroutine; they see the network namespace of the calling thread.
package dump

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// readings is how often a list is read at most, without a pause: a reading takes a millisecond or
// less, and interfaces rarely change more often.
const readings = 20

// Repeat calls read, which reads lists, until all of them were uninterrupted. The error is the one
// of the last call.
func Repeat(read func() error) error {
	var err error
	for range readings {
		// netlink.ErrDumpInterrupted is an EINTR too, like that of a signal.
		if err = read(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return fmt.Errorf("it changed in each of %d readings: %w", readings, err)
}

// Read is Repeat for one list.
func Read[T any](list func() (T, error)) (all T, err error) {
	err = Repeat(func() error {
		all, err = list()
		return err
	})
	return all, err
}

// Interfaces lists the device's interfaces, and their addresses by the interface's index.
func Interfaces() (links []netlink.Link, addresses map[int][]netlink.Addr, err error) {
	if links, err = Read(netlink.LinkList); err != nil {
		return nil, nil, fmt.Errorf("listing the interfaces: %w", err)
	}
	all, err := Read(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, nil, fmt.Errorf("listing the addresses: %w", err)
	}
	addresses = map[int][]netlink.Addr{}
	for _, a := range all {
		addresses[a.LinkIndex] = append(addresses[a.LinkIndex], a)
	}
	return links, addresses, nil
}

// Addresses lists the addresses of an interface.
func Addresses(of netlink.Link, family int) ([]netlink.Addr, error) {
	all, err := Read(func() ([]netlink.Addr, error) { return netlink.AddrList(of, family) })
	if err != nil {
		return nil, fmt.Errorf("listing the addresses of %s: %w", of.Attrs().Name, err)
	}
	return all, nil
}
