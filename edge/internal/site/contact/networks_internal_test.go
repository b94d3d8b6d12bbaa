package contact

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/lan"
	"github.com/skerry-io/skerry/edge/internal/site/peers"
)

var errLocal = errors.New("this device has a problem of its own")

// flaky is a Network with one network, which fails as often as configured.
type flaky struct {
	Network // nil: the rest is not used

	mu       sync.Mutex
	networks int // failures of Networks to come
	joins    int // of Join
	answers  int // of Answers
	carrier  bool
	looks    int // calls of Networks
}

func (f *flaky) Networks() ([]lan.Network, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks++
	if f.networks > 0 {
		f.networks--
		return nil, errLocal
	}
	return []lan.Network{{Interface: "lan0", Prefix: netip.MustParsePrefix("192.0.2.9/24"), Carrier: f.carrier}}, nil
}

func (f *flaky) Join(*net.UDPConn) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.joins > 0 {
		f.joins--
		return errLocal
	}
	return nil
}

// Answers is that of a kernel that lives.
func (f *flaky) Answers(context.Context, netip.Addr, time.Duration) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.answers > 0 {
		f.answers--
		return false, errLocal
	}
	return true, nil
}

func (f *flaky) set(change func(*flaky)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// newFlaky is an agent that has met the device a, and has never met c.
func newFlaky() (*Agent, *flaky) {
	n := &flaky{carrier: true}
	a := New(Config{Node: "b", Site: peers.New("b", nil), Network: n})
	a.core.members(time.Now(), map[string][]netip.Prefix{"a": nil, "c": nil})
	a.core.connected(time.Now(), "a", 1, home)
	a.core.receive("a", 1, report())
	a.core.take()
	return a, n
}

func (a *Agent) statuses() (met, unmet Status) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.core.peers["a"].status, a.core.peers["c"].status
}

func (a *Agent) expect(t *testing.T, when string, met, unmet Status) {
	t.Helper()
	if x, y := a.statuses(); x != met || y != unmet {
		t.Errorf("%s: %v and %v, want %v and %v", when, x, y, met, unmet)
	}
}

// Networks that can't be read do not change the devices there.
func TestLook_NetworksCannotBeRead(t *testing.T) {
	a, n := newFlaky()
	n.networks = 1
	a.look(t.Context(), nil)
	a.expect(t, "with networks that can't be read", Met, Unmet)
	a.look(t.Context(), nil)
	a.expect(t, "with networks that can be read", Met, Unmet)
	n.carrier = false
	a.look(t.Context(), nil)
	a.expect(t, "without carrier", Dead, Dead)
}

// They are read again soon, without another change, and no more often than is of use.
func TestFollowNetworks_LooksAgain(t *testing.T) {
	for name, fail := range map[string]func(*flaky){
		"the networks can't be read":    func(n *flaky) { n.networks = 2 },
		"the group can't be joined":     func(n *flaky) { n.joins = 2 },
		"first the one, then the other": func(n *flaky) { n.networks, n.joins = 1, 1 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				a, n := newFlaky()
				fail(n)
				changed := make(chan struct{}, 1)
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					a.followNetworks(ctx, nil, changed)
				}()
				poke(changed)
				time.Sleep(time.Hour)
				if n.looks != 3 {
					t.Errorf("it has looked %d times", n.looks)
				}
				a.expect(t, "after all", Met, Unmet)
				n.set(func(n *flaky) { n.networks, n.carrier = 1000, false })
				poke(changed)
				time.Sleep(time.Hour)
				if n.looks < 100 || n.looks > 200 {
					t.Errorf("in an hour of failures it has looked %d times", n.looks)
				}
				a.expect(t, "after an hour of failures", Met, Unmet)
				n.set(func(n *flaky) { n.networks = 0 })
				time.Sleep(time.Minute)
				a.expect(t, "without carrier", Dead, Dead)
				cancel()
				<-ended
			})
		})
	}
}

// A question that this device could not put is not one without an answer.
func TestAsk_CouldNotBePut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, n := newFlaky()
		n.answers = 1
		tick := func() {
			a.event(t.Context(), func(now time.Time, c *core) { c.tick(now) })
			synctest.Wait()
		}
		a.event(t.Context(), func(now time.Time, c *core) { c.closed(now, "a", 1) })
		tick()
		a.expect(t, "after a question that could not be put", Met, Unmet)
		time.Sleep(window)
		tick()
		a.expect(t, "after the next one", Mute, Unmet)
	})
}
