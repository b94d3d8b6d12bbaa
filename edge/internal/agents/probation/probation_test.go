package probation_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skerry-io/skerry/edge/internal/agents/probation"
)

// store fakes a device's store.
type store map[string][]byte

func (s store) Load() (map[string][]byte, error) { return maps.Clone(s), nil }

func (s store) Save(_ context.Context, changes map[string][]byte) error {
	maps.Copy(s, changes)
	return nil
}

// device applies the allowed claims, and reaches the cloud as long as no bad claim is applied and
// the network works.
type device struct {
	p       *probation.Claims
	all     *probation.Probation
	running sync.WaitGroup
	wakes   chan struct{}
	mu      sync.Mutex
	wanted  []string
	stands  []string
	least   int // minimum number of applied claims
	bad     map[string]bool
	away    bool
}

func newDevice(t *testing.T, kept store) *device {
	d := &device{wakes: make(chan struct{}, 1), bad: map[string]bool{}}
	wake := func() {
		select {
		case d.wakes <- struct{}{}:
		default:
		}
	}
	p := probation.New(probation.Config{Memory: kept, Ask: func(context.Context) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.away || slices.ContainsFunc(d.stands, func(c string) bool { return d.bad[c] }) {
			return errors.New("no answer")
		}
		return nil
	}})
	d.all, d.p = p, p.Of("route", wake)
	ctx, cancel := context.WithCancel(t.Context())
	d.running.Go(func() { _ = p.Run(ctx) })
	d.running.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-d.wakes:
				d.apply()
			}
		}
	})
	t.Cleanup(func() { cancel(); d.running.Wait() })
	return d
}

func (d *device) apply() {
	d.mu.Lock()
	d.stands = slices.DeleteFunc(slices.Clone(d.wanted), func(c string) bool { return d.p.Withheld(c) != "" })
	d.least = min(d.least, len(d.stands))
	all, stands := slices.Clone(d.wanted), slices.Clone(d.stands)
	d.mu.Unlock()
	d.p.Applied(all, stands)
}

func (d *device) want(claims ...string) {
	d.mu.Lock()
	d.wanted, d.least = claims, len(claims)
	d.mu.Unlock()
	d.apply()
}

func (d *device) standing() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.stands)
}

// Of three simultaneous claims one cuts off the cloud: it is withdrawn without intervention, the
// others stay applied, and a boot does not restore it. A newer object is tried.
func TestClaims_01_WhatTakesTheLinkIsUndoneByTheDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := store{}
		d := newDevice(t, kept)
		d.bad["evil"] = true
		d.want("a", "evil", "b")
		time.Sleep(10 * time.Minute)
		if got := d.standing(); !slices.Equal(got, []string{"a", "b"}) || d.p.Withheld("evil") == "" {
			t.Errorf("%q stand, and of evil is said %q", got, d.p.Withheld("evil"))
		}
		booted := newDevice(t, kept)
		booted.bad["evil"] = true
		booted.want("a", "evil", "b")
		time.Sleep(10 * time.Minute)
		if got := booted.standing(); !slices.Equal(got, []string{"a", "b"}) || booted.least != 2 {
			t.Errorf("after a boot %q stand, and for a while %d", got, booted.least)
		}
		booted.want("a", "newer", "b")
		time.Sleep(10 * time.Minute)
		if got := booted.standing(); !slices.Equal(got, []string{"a", "newer", "b"}) {
			t.Errorf("%q stand", got)
		}
	})
}

// Claims of several agents come while one of them takes the way to the cloud: that one is found,
// whichever agent it is of, and no other is blamed for it. A claim that its agent has taken out of
// the kernel in the meantime is not tried.
func TestClaims_01_NoAgentIsBlamedForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t, store{})
		gone := false
		var others []*probation.Claims
		for _, kind := range []string{"address of the Service", "virtual IP"} {
			wake := make(chan struct{}, 1)
			c := d.all.Of(kind, func() {
				select {
				case wake <- struct{}{}:
				default:
				}
			})
			others = append(others, c)
			apply := func() {
				if withheld := c.Withheld("fine") != ""; withheld || gone && kind == "virtual IP" {
					gone = gone || kind == "virtual IP"
					c.Applied([]string{"fine"}, nil)
					return
				}
				c.Applied([]string{"fine"}, []string{"fine"})
			}
			apply()
			d.running.Go(func() {
				for {
					select {
					case <-t.Context().Done():
						return
					case <-wake:
						apply()
					}
				}
			})
		}
		d.bad["evil"] = true
		d.want("a", "evil")
		time.Sleep(10 * time.Minute)
		if got := d.standing(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("%q stand", got)
		}
		for _, c := range others {
			if why := c.Withheld("fine"); why != "" {
				t.Errorf("of an innocent claim is said %q", why)
			}
		}
	})
}

// A network that fails for another reason costs no proven claim, and unproven ones are restored;
// they are tried again when a link opens.
func TestClaims_01_NetworkThatIsAwayCostsNoClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t, store{})
		d.want("a")
		time.Sleep(time.Minute)
		d.mu.Lock()
		d.away = true
		d.mu.Unlock()
		d.want("a")
		time.Sleep(time.Hour)
		if d.least != 1 {
			t.Error("a proven claim was withdrawn")
		}
		d.want("a", "b")
		time.Sleep(time.Hour)
		if got := d.standing(); !slices.Equal(got, []string{"a", "b"}) || d.least != 1 {
			t.Errorf("%q stand, for a while %d", got, d.least)
		}
		d.mu.Lock()
		d.away, d.bad["b"] = false, true
		d.mu.Unlock()
		d.p.Linked(2)
		time.Sleep(time.Hour)
		if got := d.standing(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("%q stand", got)
		}
	})
}
