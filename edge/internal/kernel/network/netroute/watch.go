package netroute

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/dump"
)

// ErrLost ends a Watch when events overflowed the socket's buffer (ENOBUFS, netlink(7)), or the
// socket is closed: the caller watches again and reads all state.
var ErrLost = errors.New("events of the kernel were lost")

// Event is something that changed. Exactly one of its fields is set.
type Event struct {
	// Route was made, changed (Gone false) or removed (Gone true).
	Route *Found
	Gone  bool
	// Links: an interface or an address was added, removed or changed. The kernel does not report
	// which routes were removed with it.
	Links bool
}

// Watch calls started once events are being collected, and then handle with each, until ctx ends
// (nil) or events were lost (ErrLost). Events of routes in the local table are skipped.
func (d *Driver) Watch(ctx context.Context, started func(), handle func(Event)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	lost := func(err error) { cancel(fmt.Errorf("%w: %w", ErrLost, err)) }
	routes, links, addresses := make(chan netlink.RouteUpdate, 64), make(chan netlink.LinkUpdate, 16), make(chan netlink.AddrUpdate, 16)
	var open sync.WaitGroup
	defer open.Wait()
	defer close(done)
	// The subscriptions end when done is closed; until their channels are closed these must be
	// emptied, or they would never see it.
	opened := func() {
		drain(&open, routes)
		drain(&open, links)
		drain(&open, addresses)
	}
	if err := netlink.RouteSubscribeWithOptions(routes, done, netlink.RouteSubscribeOptions{
		Namespace: &d.ns, ErrorCallback: lost, ReceiveBufferSize: d.config.Buffer, ReceiveBufferForceSize: true,
	}); err != nil {
		return fmt.Errorf("following routes: %w", err)
	}
	if err := netlink.LinkSubscribeWithOptions(links, done, netlink.LinkSubscribeOptions{Namespace: &d.ns, ErrorCallback: lost}); err != nil {
		drain(&open, routes)
		return fmt.Errorf("following interfaces: %w", err)
	}
	if err := netlink.AddrSubscribeWithOptions(addresses, done, netlink.AddrSubscribeOptions{Namespace: &d.ns, ErrorCallback: lost}); err != nil {
		drain(&open, routes)
		drain(&open, links)
		return fmt.Errorf("following addresses: %w", err)
	}
	defer opened()
	names, err := dump.Read(d.names)
	if err != nil {
		return err
	}
	started()
	for {
		select {
		case <-ctx.Done():
			if cause := context.Cause(ctx); errors.Is(cause, ErrLost) {
				return cause
			}
			return nil
		case u, ok := <-routes:
			if !ok {
				return d.ended(ctx, "routes")
			}
			family := unix.AF_INET
			if u.Family == unix.AF_INET6 {
				family = unix.AF_INET6
			}
			if f, wanted := found(u.Route, family, names); wanted {
				handle(Event{Route: &f, Gone: u.Type == unix.RTM_DELROUTE})
			}
		case u, ok := <-links:
			if !ok {
				return d.ended(ctx, "interfaces")
			}
			if a := u.Attrs(); a != nil {
				names[a.Index] = a.Name
			}
			handle(Event{Links: true})
		case _, ok := <-addresses:
			if !ok {
				return d.ended(ctx, "addresses")
			}
			handle(Event{Links: true})
		}
	}
}

// ended returns the reason why a subscription ended by itself: its error was sent first.
func (d *Driver) ended(ctx context.Context, what string) error {
	if cause := context.Cause(ctx); cause != nil {
		if errors.Is(cause, ErrLost) {
			return cause
		}
		return nil
	}
	return fmt.Errorf("following %s: %w", what, ErrLost)
}

func drain[T any](wg *sync.WaitGroup, ch <-chan T) {
	wg.Go(func() {
		for range ch { // emptied, not read
		}
	})
}
