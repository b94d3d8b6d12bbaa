// Package view caches the device's part of the cluster for its clients: the objects, the interests
// that define which sets are cached, and the watches.
//
// It owns these in memory, the versions that clients see, and whether a set may be answered from.
// It refuses to answer from a set that was never completely delivered: a wrong empty list makes a
// kubelet kill every pod. It does not write to the disk itself: a Batch has the writes for its
// user's transaction, and becomes visible with Show once that is committed.
//
// One goroutine stages and shows; it reads the visible state without a lock. Readers share a lock
// with it and never wait for the disk. The methods for clients may be called by many goroutines at
// once; before Open and after Close they are answered 503.
//
// From the bottom: held.go, watcher.go, table.go and interest.go are the state; cover.go decides
// which requests may be answered; batch.go and show.go change it; load.go reads it from the store;
// hold.go, read.go and watch.go answer clients.
package view

import (
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/reply"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// View is the cache that clients read.
type View struct {
	config Config        // set by New, never changed
	next   atomic.Uint64 // the newest version that was given out, shown or not

	mu           sync.RWMutex // guards the fields below; only the goroutine that shows changes it, watchers apart
	running      bool
	version      uint64 // the newest that was shown
	base         uint64 // the first of this run: no watch can start before it
	tables       map[schema.GroupVersionResource]*table
	interests    map[uint64]*Interest
	lastInterest uint64      // the number of the newest
	uses         map[use]int // the objects that cached pods refer to
	gone         gone
	link         linkstate.Link
	linked       bool

	retained map[types.NamespacedName]struct{} // pods that stay although the cloud took them back; owned by the goroutine that shows
}

// New returns an empty View.
func New(config Config) *View {
	v := &View{config: config}
	v.reset()
	return v
}

func (v *View) reset() {
	v.tables = map[schema.GroupVersionResource]*table{}
	v.interests = map[uint64]*Interest{}
	v.uses = map[use]int{}
	v.gone = gone{}
	v.link, v.linked = linkstate.Link{}, false
	v.retained = map[types.NamespacedName]struct{}{}
}

// Open begins to answer.
func (v *View) Open() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.running = true
}

// Close ends every watch and wait, and answers no more.
func (v *View) Close() {
	v.mu.Lock()
	v.running, v.linked = false, false
	var watchers []*watcher
	for _, t := range v.tables {
		watchers = append(watchers, t.allWatchers()...)
	}
	for _, i := range v.interests {
		i.wakeAll()
	}
	v.mu.Unlock()
	for _, w := range watchers {
		w.end(reply.Unavailable("edgecore stops", 1))
	}
}

// Running reports whether the View is open.
func (v *View) Running() bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.running
}

// Linked reports whether there is a session with the cloud.
func (v *View) Linked() bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.linked
}

// Link is the newest session with the cloud.
func (v *View) Link() linkstate.Link {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.link
}

// Version is the newest version that can be seen.
func (v *View) Version() uint64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.version
}

// NextVersion gives out a version.
func (v *View) NextVersion() uint64 { return v.next.Add(1) }

// Lookup returns the cached object, visible or not; nil if it is not cached.
func (v *View) Lookup(ref object.Ref) *Held {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.held(ref)
}

// held is Lookup. Called with the lock held, or by the goroutine that shows.
func (v *View) held(ref object.Ref) *Held {
	if t := v.tables[ref.Resource]; t != nil {
		return t.objects[keyOf(ref)]
	}
	return nil
}
