package netif

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// kernel is one whose interfaces and subscriptions are the test's.
type kernel struct {
	mu      sync.Mutex
	opened  *subscription
	opens   int
	lists   int
	changes int
	err     error // of list
	refused error // of open
	have    []Interface
}

func (k *kernel) open() (*subscription, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.opens++
	if k.refused != nil {
		return nil, k.refused
	}
	k.opened = &subscription{wake: make(chan struct{}, 1), lost: make(chan error, 1), done: make(chan struct{})}
	return k.opened, nil
}

func (k *kernel) list() ([]Interface, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lists++
	return k.have, k.err
}

func (k *kernel) changed() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.changes++
}

// set changes the kernel, which reports that, and waits for a while.
func (k *kernel) set(after time.Duration, change func(*kernel)) {
	k.mu.Lock()
	change(k)
	if k.opened != nil {
		k.opened.tell()
	}
	k.mu.Unlock()
	time.Sleep(after)
	synctest.Wait()
}

func (k *kernel) expect(t *testing.T, when string, opens, changes int) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.opens != opens || k.changes != changes {
		t.Errorf("%s: %d subscriptions and %d changes, want %d and %d", when, k.opens, k.changes, opens, changes)
	}
}

// No failure ends a Watch, and no change is missed.
func TestWatch_failures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		k := &kernel{have: []Interface{{Name: "eth0"}}}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			watch(ctx, k.open, k.list, k.changed)
		}()
		synctest.Wait()
		k.expect(t, "at the start", 1, 1)

		k.set(10*time.Minute, func(k *kernel) { k.err, k.lists, k.have = errors.New("interrupted"), 0, nil })
		k.expect(t, "while the list fails", 1, 1)
		if k.lists < 20 || k.lists > 30 {
			t.Errorf("in ten minutes it was tried %d times", k.lists)
		}
		k.mu.Lock()
		k.err = nil // no message of the kernel: no change
		k.mu.Unlock()
		time.Sleep(pauseMost + time.Second)
		synctest.Wait()
		k.expect(t, "the list can be read again", 1, 2)

		k.opened.fail(unix.ENOBUFS)
		k.set(time.Second, func(k *kernel) { k.have = []Interface{{Name: "eth1"}} })
		k.expect(t, "messages were lost", 2, 3)

		was := k.opened
		k.set(0, func(k *kernel) { k.refused = unix.EMFILE })
		was.fail(unix.ENOBUFS)
		time.Sleep(time.Minute)
		synctest.Wait()
		select {
		case <-was.done:
		default:
			t.Error("a subscription of no use is open still")
		}
		k.set(time.Minute, func(k *kernel) { k.refused, k.opens, k.have = nil, 0, nil })
		k.expect(t, "a subscription can be opened again", 1, 4)
		k.set(time.Second, func(k *kernel) { k.have = []Interface{{Name: "eth2"}} })
		k.expect(t, "as before", 1, 5)

		cancel()
		<-ended
		select {
		case <-k.opened.done:
		default:
			t.Error("the subscription outlives the watch")
		}
	})
}

// A failure at the start is retried as well.
func TestWatch_failsAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		k := &kernel{refused: unix.EMFILE}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			watch(ctx, k.open, k.list, k.changed)
		}()
		synctest.Wait()
		k.expect(t, "at the start", 1, 0)
		k.set(time.Minute, func(k *kernel) { k.refused, k.opens = nil, 0 })
		k.expect(t, "a while later", 1, 1)
		cancel()
		<-ended
	})
}
