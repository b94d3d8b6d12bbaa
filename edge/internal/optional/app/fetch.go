package app

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Fetcher gets content to the device.
type Fetcher interface {
	// Fetch returns when the content is on the device and has its digest. It is safe to repeat, and
	// cheap if the content is present.
	Fetch(ctx context.Context, c v1alpha1.AppContent) error
	// Prune removes content without one of these digests.
	Prune(keep map[string]bool) (removed []string, err error)
}

const (
	// After a failure content is fetched again after these times.
	fetchMin = 5 * time.Second
	fetchMax = 5 * time.Minute
	// fetchesAtOnce is how much is fetched side by side: a thin link does not gain by it, but one
	// slow source must not hold up all others.
	fetchesAtOnce = 4
	// pruneAfter is for how long no application may name content before it is removed: one that is
	// made again, or renamed, has it still.
	pruneAfter = 10 * time.Minute
)

// fetches gets content, and removes content that no application references any more.
type fetches struct {
	fetcher Fetcher
	changed func()
	wake    chan struct{} // one slot

	mu     sync.Mutex
	wanted map[string]v1alpha1.AppContent
	state  map[string]*fetch
	under  map[string]underway // by key
	named  map[string]bool     // digests that any application names here, switched off ones too
	prune  time.Time           // when to remove others; zero: no change since
}

type fetch struct {
	why   string // "" once it is present
	delay time.Duration
	next  time.Time
	there bool
}

func newFetches(f Fetcher, changed func()) *fetches {
	return &fetches{fetcher: f, changed: changed, wake: make(chan struct{}, 1), wanted: map[string]v1alpha1.AppContent{}, state: map[string]*fetch{}, under: map[string]underway{}}
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

// named are the digests of disk images that an application has or may have here.
func named(s State) map[string]bool {
	all := map[string]bool{}
	for _, app := range s.Apps {
		for _, c := range app.Spec.Content {
			if c.SHA256 != "" && Local(c, app.Spec.DesignatedNode == s.Node) {
				all[c.SHA256] = true
			}
		}
	}
	return all
}

// want replaces the content that is to be fetched, and that is to stay. Unwanted content is
// dropped, and its download cancelled.
func (f *fetches) want(all map[string]v1alpha1.AppContent, named map[string]bool) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.named == nil || !maps.Equal(f.named, named) {
		f.named, f.prune = named, time.Now().Add(pruneAfter)
		poke(f.wake)
	}
	if maps.Equal(f.wanted, all) {
		return
	}
	f.wanted = all
	for key, u := range f.under {
		if _, still := all[key]; !still {
			u.cancel()
		}
	}
	maps.DeleteFunc(f.state, func(key string, _ *fetch) bool { _, still := all[key]; return !still })
	poke(f.wake)
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// have is the content on the device, and why the rest is missing.
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

// underway is a fetch that has not ended.
type underway struct {
	digest string
	cancel context.CancelFunc
}

// busy reports whether content is being fetched, or the same file from another source. mu is held.
func (f *fetches) busy(key string) bool {
	if _, is := f.under[key]; is {
		return true
	}
	digest := f.wanted[key].SHA256
	for _, u := range f.under {
		if digest != "" && u.digest == digest {
			return true
		}
	}
	return false
}

// due is the content whose turn it is, or how long until then; 0 for ever.
func (f *fetches) due(now time.Time) (key string, c v1alpha1.AppContent, wait time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sooner := func(at time.Time) {
		if d := max(at.Sub(now), time.Millisecond); wait == 0 || d < wait {
			wait = d
		}
	}
	if !f.prune.IsZero() {
		sooner(f.prune)
	}
	for _, key := range slices.Sorted(maps.Keys(f.wanted)) {
		s := f.state[key]
		switch {
		case s != nil && s.there || f.busy(key):
		case (s == nil || !now.Before(s.next)) && len(f.under) < fetchesAtOnce:
			return key, f.wanted[key], 0
		case s != nil && now.Before(s.next):
			sooner(s.next)
		}
	}
	return "", c, wait
}

func (f *fetches) run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	for ctx.Err() == nil {
		f.remove(ctx, time.Now())
		key, c, wait := f.due(time.Now())
		if key != "" {
			one, cancel := context.WithCancel(ctx)
			f.mu.Lock()
			f.under[key] = underway{c.SHA256, cancel}
			f.mu.Unlock()
			all.Go(func() {
				defer cancel()
				f.done(key, f.fetcher.Fetch(one, c))
				poke(f.wake)
			})
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

// remove removes content that no application has named for a while.
func (f *fetches) remove(ctx context.Context, now time.Time) {
	f.mu.Lock()
	keep, due := f.named, !f.prune.IsZero() && !now.Before(f.prune)
	if due {
		f.prune = time.Time{}
	}
	f.mu.Unlock()
	if !due {
		return
	}
	removed, err := f.fetcher.Prune(keep)
	if len(removed) > 0 {
		klog.FromContext(ctx).Info("Removed content that no application references", "files", removed)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to remove unreferenced content, retrying")
		f.mu.Lock()
		f.prune = now.Add(pruneAfter)
		f.mu.Unlock()
	}
}

func (f *fetches) done(key string, err error) {
	f.mu.Lock()
	delete(f.under, key)
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
