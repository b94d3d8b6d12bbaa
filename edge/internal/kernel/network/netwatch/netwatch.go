// Package netwatch wakes a listener when the device's network may have been restored: a new
// carrier, address or route.
//
// It owns three netlink subscriptions (rtnetlink(7)) and makes no decisions: a wake-up is a reason
// to try, no promise that it helps. Messages lost by the kernel (ENOBUFS) count as a change. One
// goroutine reads; the channel has a buffer of one, so that a slow listener is woken once for many
// changes.
package netwatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
)

// Name is the module's address on the bus. It receives no messages.
const Name message.Name = "netwatch"

// Watcher is the module.
type Watcher struct {
	namespace *netns.NsHandle
	wake      chan struct{}
}

// New returns a Watcher of a network namespace; nil is the process' own. Run starts it.
func New(namespace *netns.NsHandle) *Watcher {
	return &Watcher{namespace: namespace, wake: make(chan struct{}, 1)}
}

// C receives after changes.
func (w *Watcher) C() <-chan struct{} { return w.wake }

// Name implements beehive.Module.
func (w *Watcher) Name() message.Name { return Name }

// Run implements beehive.Module.
func (w *Watcher) Run(ctx context.Context, port *beehive.Port) error {
	done := make(chan struct{})
	links, addresses, routes := make(chan netlink.LinkUpdate, 16), make(chan netlink.AddrUpdate, 16), make(chan netlink.RouteUpdate, 16)
	opened := 0
	defer func() {
		close(done)
		// The library's goroutines may be about to send; they close their channels when they have
		// seen the end.
		for _, drain := range []func(){func() { drain(links) }, func() { drain(addresses) }, func() { drain(routes) }}[:opened] {
			drain()
		}
	}()
	failed := make(chan error, 3) // one for each subscription: no sender blocks at the end
	fail := func(err error) {
		if errors.Is(err, unix.ENOBUFS) {
			w.notify()
			return
		}
		select {
		case failed <- err:
		default:
		}
	}
	if err := netlink.LinkSubscribeWithOptions(links, done, netlink.LinkSubscribeOptions{Namespace: w.namespace, ErrorCallback: fail}); err != nil {
		return fmt.Errorf("subscribing to links: %w", err)
	}
	opened++
	if err := netlink.AddrSubscribeWithOptions(addresses, done, netlink.AddrSubscribeOptions{Namespace: w.namespace, ErrorCallback: fail}); err != nil {
		return fmt.Errorf("subscribing to addresses: %w", err)
	}
	opened++
	if err := netlink.RouteSubscribeWithOptions(routes, done, netlink.RouteSubscribeOptions{Namespace: w.namespace, ErrorCallback: fail}); err != nil {
		return fmt.Errorf("subscribing to routes: %w", err)
	}
	opened++
	port.Ready()
	for {
		var ended bool
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return fmt.Errorf("reading changes of the network: %w", err)
		case u, ok := <-links:
			// Of a pod's veth too: rare enough, and a word costs one look at whether there is a
			// link.
			if ended = !ok; ok && u.Header.Type == unix.RTM_NEWLINK && u.Attrs().RawFlags&unix.IFF_LOWER_UP != 0 {
				w.notify()
			}
		case u, ok := <-addresses:
			if ended = !ok; ok && u.NewAddr {
				w.notify()
			}
		case u, ok := <-routes:
			if ended = !ok; ok && u.Type == unix.RTM_NEWROUTE {
				w.notify()
			}
		}
		if ended {
			// The subscription has sent its error, or is about to.
			select {
			case err := <-failed:
				return fmt.Errorf("reading changes of the network: %w", err)
			case <-time.After(time.Second):
				return errors.New("reading changes of the network: the subscription ended")
			case <-ctx.Done():
				return nil
			}
		}
	}
}

func drain[T any](ch <-chan T) {
	for range ch { // later updates are ignored
	}
}

func (w *Watcher) notify() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}
