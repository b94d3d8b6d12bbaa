package vip

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/acd"
)

const (
	// advertMost bounds the routers that are remembered. At the bound new ones are ignored: a LAN
	// has only a handful.
	advertMost = 1024
	// monitorAgain is how soon a monitor that failed is started again.
	monitorAgain = 2 * time.Second
)

// monitorFunc is acd.Monitor.
type monitorFunc = func(ctx context.Context, iface string, heard func(acd.Advert)) error

// advertLog records other hosts' VRRP advertisements on the interfaces in use.
type advertLog struct {
	monitor monitorFunc
	wake    func()

	mu        sync.Mutex
	wg        sync.WaitGroup
	listening map[string]*listening // by interface
	heard     map[advertKey]heardAdvert
}

type listening struct {
	since  time.Time
	cancel context.CancelFunc
}

type advertKey struct {
	iface string
	from  string // hardware address
	ipv6  bool
	vrid  uint8
}

type heardAdvert struct {
	advert acd.Advert
	at     time.Time
}

func newAdvertLog(monitor monitorFunc, wake func()) *advertLog {
	return &advertLog{monitor: monitor, wake: wake, listening: map[string]*listening{}, heard: map[advertKey]heardAdvert{}}
}

// follow listens on exactly these interfaces.
func (l *advertLog) follow(ctx context.Context, interfaces map[string]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, on := range l.listening {
		if !interfaces[name] {
			on.cancel()
			delete(l.listening, name)
		}
	}
	for name := range interfaces {
		if l.listening[name] != nil {
			continue
		}
		listen, cancel := context.WithCancel(ctx)
		l.listening[name] = &listening{since: time.Now(), cancel: cancel}
		l.wg.Go(func() { l.listen(listen, name) })
	}
}

// listen monitors an interface until ctx ends, again and again.
func (l *advertLog) listen(ctx context.Context, iface string) {
	for ctx.Err() == nil {
		if err := l.monitor(ctx, iface, l.hear); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Failed to listen for VRRP advertisements, retrying", "interface", iface, "err", err, "in", monitorAgain)
		}
		select {
		case <-ctx.Done():
		case <-time.After(monitorAgain):
		}
	}
}

// stop ends all listening.
func (l *advertLog) stop() {
	l.mu.Lock()
	for _, on := range l.listening {
		on.cancel()
	}
	l.mu.Unlock()
	l.wg.Wait()
}

// hear records an advertisement. Repetitions wake no goroutine.
func (l *advertLog) hear(a acd.Advert) {
	key := advertKey{a.Interface, a.From.String(), a.IPv6, a.VRID}
	l.mu.Lock()
	before, known := l.heard[key]
	if !known && len(l.heard) >= advertMost {
		l.mu.Unlock()
		return
	}
	l.heard[key] = heardAdvert{a, time.Now()}
	l.mu.Unlock()
	if !known || before.expired(time.Now()) || (a.Priority == 0) != (before.advert.Priority == 0) || len(a.Addresses) != len(before.advert.Addresses) {
		l.wake()
	}
}

// expired reports whether the sender has missed three of its own intervals and a second more.
func (h heardAdvert) expired(now time.Time) bool {
	return now.Sub(h.at) > 3*h.advert.Interval+time.Second
}

// latest are the advertisements of senders that still speak.
func (l *advertLog) latest(now time.Time) (all []acd.Advert) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, h := range l.heard {
		if h.expired(now) {
			delete(l.heard, key)
			continue
		}
		all = append(all, h.advert)
	}
	return all
}

// since is for how long an interface has been listened to.
func (l *advertLog) since(iface string, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if on := l.listening[iface]; on != nil {
		return now.Sub(on.since)
	}
	return 0
}

// takenSince reports whether another host advertised an election's number since a time.
func (l *advertLog) takenSince(iface string, ipv6 bool, vrid uint8, at time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, h := range l.heard {
		if key.iface == iface && key.ipv6 == ipv6 && key.vrid == vrid && h.advert.Priority > 0 && h.at.After(at) {
			return true
		}
	}
	return false
}
