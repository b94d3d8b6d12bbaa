package netif_test

import (
	"context"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/dump/dumptest"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
	"github.com/skerry-io/skerry/tests/netns/wire"
)

// Pods start and end while the interfaces are listed.
func TestList_interfacesComeAndGo(t *testing.T) {
	h := wire.NewHost(t)
	dumptest.Churn(t, h.Do)
	h.Must(t, func() error {
		for range 300 {
			if _, err := netif.List(); err != nil {
				return err
			}
		}
		return nil
	})
}

// They don't end a Watch either, and it sees later changes.
func TestWatch_interfacesComeAndGo(t *testing.T) {
	h := wire.NewHost(t)
	ctx, cancel := context.WithCancel(t.Context())
	changed, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- h.Do(func() error {
			return netif.Watch(ctx, func() {
				select {
				case changed <- struct{}{}:
				default:
				}
			})
		})
	}()
	see := func(what string) {
		t.Helper()
		select {
		case <-changed:
		case err := <-ended:
			t.Fatalf("%s: Watch has ended: %v", what, err)
		}
	}
	see("the first look")
	stop := dumptest.Churn(t, h.Do)
	h.Must(t, func() error {
		for range 1000 { // for as long as the watch needs to look often
			_, _ = netlink.LinkList()
		}
		return nil
	})
	stop()
	h.Must(t, func() error {
		for _, name := range []string{"standing0", "standing1"} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetUp(l); err != nil {
				return err
			}
		}
		return nil
	})
	see("two interfaces that come up")
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Watch: %v", err)
	}
}
