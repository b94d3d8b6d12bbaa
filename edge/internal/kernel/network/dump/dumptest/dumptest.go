// Package dumptest makes interfaces come and go while a test lists them.
//
// It owns the interfaces that it makes, in a network namespace of the test, with which they go.
// Churn starts one goroutine, which ends with the test.
package dumptest

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
)

const (
	// standing interfaces make a list longer than one read from the kernel: only between two reads
	// can it be interrupted.
	standing = 60
	// each of them has this many addresses, for the same reason.
	addresses = 10
)

// Churn makes and removes a pair of interfaces again and again, as pods that start and end do,
// until stop is called or the test ends. enter runs a function in the network namespace for it.
func Churn(t testing.TB, enter func(func() error) error) (stop func()) {
	t.Helper()
	if err := enter(stand); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		err := enter(func() error {
			for {
				select {
				case <-done:
					return nil
				default:
				}
				l := veth("passing0", "passing1")
				if err := errors.Join(netlink.LinkAdd(l), netlink.LinkDel(l)); err != nil {
					return err
				}
			}
		})
		if err != nil {
			t.Error(err)
		}
	})
	stop = sync.OnceFunc(func() {
		close(done)
		running.Wait()
	})
	t.Cleanup(stop)
	return stop
}

func stand() error {
	for i := 0; i < standing; i += 2 {
		pair := veth(fmt.Sprintf("standing%d", i), fmt.Sprintf("standing%d", i+1))
		if err := netlink.LinkAdd(pair); err != nil {
			return fmt.Errorf("making %s: %w", pair.Name, err)
		}
		for of, name := range []string{pair.Name, pair.PeerName} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return fmt.Errorf("finding %s: %w", name, err)
			}
			for n := range addresses {
				a := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 200, byte(i+of), byte(n+1)), Mask: net.CIDRMask(32, 32)}}
				if err := netlink.AddrAdd(l, a); err != nil {
					return fmt.Errorf("giving %s an address: %w", name, err)
				}
			}
		}
	}
	return nil
}

func veth(name, peer string) *netlink.Veth {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	return &netlink.Veth{LinkAttrs: attrs, PeerName: peer}
}
