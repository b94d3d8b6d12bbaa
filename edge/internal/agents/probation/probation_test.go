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

// store keeps what a device keeps.
type store map[string][]byte

func (s store) Load() (map[string][]byte, error) { return maps.Clone(s), nil }

func (s store) Save(_ context.Context, changes map[string][]byte) error {
	maps.Copy(s, changes)
	return nil
}

// device applies what is allowed, and reaches the cloud as long as no bad claim stands and the
// network is there.
type device struct {
	p      *probation.Probation
	wakes  chan struct{}
	mu     sync.Mutex
	wanted []string
	stands []string
	least  int // how few have stood
	bad    map[string]bool
	away   bool
}

func newDevice(t *testing.T, kept store) *device {
	d := &device{wakes: make(chan struct{}, 1), bad: map[string]bool{}}
	wake := func() {
		select {
		case d.wakes <- struct{}{}:
		default:
		}
	}
	d.p = probation.New(probation.Config{Name: "routes", Memory: kept, Wake: wake, Ask: func(context.Context) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.away || slices.ContainsFunc(d.stands, func(c string) bool { return d.bad[c] }) {
			return errors.New("no answer")
		}
		return nil
	}})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = d.p.Run(ctx) })
	running.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-d.wakes:
				d.apply()
			}
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
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

// Of three that came together one takes the way to the cloud: it is withdrawn, with nobody's help,
// the others stand, and a boot does not bring it back. A newer object is tried.
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

// A network that is away for another reason costs nothing that is proven, and what is not is put
// back; it is tried again when a link opens.
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
		d.p.LinkOpened()
		time.Sleep(time.Hour)
		if got := d.standing(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("%q stand", got)
		}
	})
}
