package netif

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2"
)

const (
	// gather is how long changes are gathered before the interfaces are listed again: a cable that
	// is plugged in brings a handful of them.
	gather = 50 * time.Millisecond
	// pauseMin and pauseMost bound the pause before a failed operation is retried.
	pauseMin  = time.Second
	pauseMost = 30 * time.Second
)

// Watch calls changed whenever List has become another, until ctx ends. Changes that List does not
// show, such as an address without a network, are not reported. It reads rtnetlink(7).
//
// No failure ends it: that would end its users, such as the elections for virtual IPs, and move
// addresses to other nodes. Failures are logged and retried. If the socket's buffer overflowed and
// messages were lost, it subscribes again and reads the state.
func Watch(ctx context.Context, changed func()) error {
	watch(ctx, subscribe, List, changed)
	return nil
}

func watch(ctx context.Context, open func() (*subscription, error), list func() ([]Interface, error), changed func()) {
	log := klog.FromContext(ctx)
	var s *subscription // nil: to be opened
	defer func() { s.close() }()
	var last []Interface
	first, pause := true, pauseMin
	for {
		var err error
		if s == nil {
			s, err = open()
		}
		var now []Interface
		if err == nil {
			now, err = list()
		}
		var again <-chan time.Time
		var wake <-chan struct{}
		switch {
		case err != nil:
			log.Error(err, "Failed to read the network interfaces, retrying", "in", pause)
			again = time.After(pause)
			pause = min(2*pause, pauseMost)
		case first || !reflect.DeepEqual(last, now): // changes before the first reading are unknown
			first, last = false, now
			changed()
			fallthrough
		default:
			wake, pause = s.wake, pauseMin
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		case err := <-s.ended():
			log.V(2).Info("Lost changes of the network interfaces, subscribing again", "err", err)
			s.close()
			s = nil
		case <-wake:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(gather):
		}
	}
}

// subscription is one to changes of interfaces, addresses and routes.
type subscription struct {
	wake chan struct{} // something changed
	// lost has the reason why a subscription ended. The library ends one at the first lost message
	// (ENOBUFS), and reports only a text.
	lost chan error
	done chan struct{}
}

// subscribe opens a subscription in the network namespace of the calling thread.
func subscribe() (*subscription, error) {
	s := &subscription{wake: make(chan struct{}, 1), lost: make(chan error, 1), done: make(chan struct{})}
	links, addresses, routes := make(chan netlink.LinkUpdate, 64), make(chan netlink.AddrUpdate, 64), make(chan netlink.RouteUpdate, 64)
	if err := netlink.LinkSubscribeWithOptions(links, s.done, netlink.LinkSubscribeOptions{ErrorCallback: s.fail}); err != nil {
		s.close()
		return nil, fmt.Errorf("subscribing to links: %w", err)
	}
	go forward(links, s.tell)
	if err := netlink.AddrSubscribeWithOptions(addresses, s.done, netlink.AddrSubscribeOptions{ErrorCallback: s.fail}); err != nil {
		s.close()
		return nil, fmt.Errorf("subscribing to addresses: %w", err)
	}
	go forward(addresses, s.tell)
	if err := netlink.RouteSubscribeWithOptions(routes, s.done, netlink.RouteSubscribeOptions{ErrorCallback: s.fail}); err != nil {
		s.close()
		return nil, fmt.Errorf("subscribing to routes: %w", err)
	}
	go forward(routes, s.tell)
	return s, nil
}

func (s *subscription) tell() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *subscription) fail(err error) {
	select {
	case s.lost <- err:
	default: // the first one is enough
	}
}

// ended receives when s has ended; never for the nil one.
func (s *subscription) ended() <-chan error {
	if s == nil {
		return nil
	}
	return s.lost
}

func (s *subscription) close() {
	if s != nil {
		close(s.done)
	}
}

// forward reads a subscription until it ends; it does when it is closed.
func forward[T any](updates <-chan T, tell func()) {
	for range updates {
		tell()
	}
}
