package netif

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// gather is how long changes are gathered before the interfaces are listed again: a cable that is
// plugged in brings a handful of them.
const gather = 50 * time.Millisecond

// Watch calls changed whenever List has become another, until ctx ends. Changes that List does not
// show, such as an address without a network, are not reported. It reads rtnetlink(7); messages
// that the kernel had no room for count as a change.
func Watch(ctx context.Context, changed func()) error {
	done := make(chan struct{})
	defer close(done)
	links, addresses, routes := make(chan netlink.LinkUpdate, 64), make(chan netlink.AddrUpdate, 64), make(chan netlink.RouteUpdate, 64)
	wake, failed := make(chan struct{}, 1), make(chan error, 3) // three subscriptions
	tell := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	fail := func(err error) {
		if errors.Is(err, unix.ENOBUFS) {
			tell()
			return
		}
		select {
		case failed <- err:
		default:
		}
	}
	if err := netlink.LinkSubscribeWithOptions(links, done, netlink.LinkSubscribeOptions{ErrorCallback: fail}); err != nil {
		return fmt.Errorf("subscribing to links: %w", err)
	}
	go forward(links, tell)
	if err := netlink.AddrSubscribeWithOptions(addresses, done, netlink.AddrSubscribeOptions{ErrorCallback: fail}); err != nil {
		return fmt.Errorf("subscribing to addresses: %w", err)
	}
	go forward(addresses, tell)
	if err := netlink.RouteSubscribeWithOptions(routes, done, netlink.RouteSubscribeOptions{ErrorCallback: fail}); err != nil {
		return fmt.Errorf("subscribing to routes: %w", err)
	}
	go forward(routes, tell)
	last, err := List()
	if err != nil {
		return err
	}
	changed() // what changed before the first look is not known
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("reading changes of the interfaces: %w", err)
		case <-wake:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(gather):
		}
		now, err := List()
		if err != nil {
			return err
		}
		if !reflect.DeepEqual(last, now) {
			last = now
			changed()
		}
	}
}

// forward reads a subscription until it ends; it does when Watch returns.
func forward[T any](updates <-chan T, tell func()) {
	for range updates {
		tell()
	}
}
