package app

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Fetcher gets content to the device.
type Fetcher interface {
	// Fetch returns when the content is on the device and is what it should be. It is safe to
	// repeat, and cheap where the content is there.
	Fetch(ctx context.Context, c v1alpha1.AppContent) error
}

const (
	// After a failure content is fetched again after these times.
	fetchMin = 5 * time.Second
	fetchMax = 5 * time.Minute
)

// fetches gets content, one piece after the other: a thin link gains nothing by more.
type fetches struct {
	fetcher Fetcher
	changed func()
	wake    chan struct{} // one slot

	mu     sync.Mutex
	wanted map[string]v1alpha1.AppContent
	state  map[string]*fetch
}

type fetch struct {
	why   string // "" once it is there
	delay time.Duration
	next  time.Time
	there bool
}

func newFetches(f Fetcher, changed func()) *fetches {
	return &fetches{fetcher: f, changed: changed, wake: make(chan struct{}, 1), wanted: map[string]v1alpha1.AppContent{}, state: map[string]*fetch{}}
}

// wanted is the content that this node has to fetch.
func wanted(s State) map[string]v1alpha1.AppContent {
	all := map[string]v1alpha1.AppContent{}
	for _, app := range s.Apps {
		for _, c := range app.Spec.Content {
			if app.Spec.Active() && Local(c, app.Spec.DesignatedNode == s.Node) {
				all[ContentKey(c)] = c
			}
		}
	}
	return all
}

// want replaces what is to be fetched. What is not wanted any more is forgotten; what is on the
// disk stays for its consumers.
func (f *fetches) want(all map[string]v1alpha1.AppContent) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if maps.Equal(f.wanted, all) {
		return
	}
	f.wanted = all
	maps.DeleteFunc(f.state, func(key string, _ *fetch) bool { _, still := all[key]; return !still })
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// have is what is on the device, and why the rest is not.
func (f *fetches) have() map[string]string {
	all := map[string]string{}
	if f == nil {
		return all
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for key := range f.wanted {
		all[key] = "it is being fetched"
		if s := f.state[key]; s != nil {
			all[key] = s.why
		}
	}
	return all
}

// due is the content whose turn it is, or how long until then; 0 for ever.
func (f *fetches) due(now time.Time) (key string, c v1alpha1.AppContent, wait time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(f.wanted)) {
		s := f.state[key]
		switch {
		case s == nil || !s.there && !now.Before(s.next):
			return key, f.wanted[key], 0
		case !s.there && (wait == 0 || s.next.Sub(now) < wait):
			wait = s.next.Sub(now)
		}
	}
	return "", c, wait
}

func (f *fetches) run(ctx context.Context) error {
	for ctx.Err() == nil {
		key, c, wait := f.due(time.Now())
		if key != "" {
			f.done(key, f.fetcher.Fetch(ctx, c))
			continue
		}
		var again <-chan time.Time
		if wait > 0 {
			again = time.After(wait)
		}
		select {
		case <-ctx.Done():
		case <-f.wake:
		case <-again:
		}
	}
	return nil
}

func (f *fetches) done(key string, err error) {
	f.mu.Lock()
	s := f.state[key]
	if s == nil {
		s = &fetch{}
	}
	if _, still := f.wanted[key]; still {
		f.state[key] = s
	}
	if err == nil {
		s.there, s.why = true, ""
	} else {
		s.why = err.Error()
		s.delay = min(max(2*s.delay, fetchMin), fetchMax)
		s.next = time.Now().Add(s.delay)
	}
	f.mu.Unlock()
	f.changed()
}
