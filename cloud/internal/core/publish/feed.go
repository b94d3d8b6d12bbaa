package publish

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// feed leads the changes of one collection to the sessions that they concern, without asking all
// the others: most of an edge's objects are selected by its node's name or by one object's.
type feed struct {
	key     feedKey
	store   *kube.Store
	project *projection // nil where all edges get the same
	release func()
	cancel  func()
	users   int         // under the lock of feeds
	ending  *time.Timer // without sessions: closes the feed

	mu     sync.RWMutex
	byNode map[string][]*entry
	byName map[string][]*entry
	byKey  map[kube.Key][]toucher // wanted by key, whatever the object is like
	all    []*entry
	past   history
}

// feedKey is a collection, as one site gets it where sites get different things.
type feedKey struct {
	gvr  schema.GroupVersionResource
	site string
}

// toucher is notified of the keys that have changed.
type toucher interface{ touch(kube.Key) }

// entry is one selection of one session.
type entry struct {
	resource toucher
	sel      *kube.Selection
}

func (f *feed) changed(old, new *kube.Object) {
	if old != nil && new != nil && old.Sum == new.Sum {
		return // the part that edges get is unchanged
	}
	var key kube.Key
	if new != nil {
		key = new.Key
	} else {
		key = old.Key
	}
	f.past.add(key, old, new)
	f.mu.RLock()
	defer f.mu.RUnlock()
	for _, r := range f.byKey[key] {
		r.touch(key)
	}
	tell(f.byName[key.Name], key, old, new)
	if len(f.byNode) > 0 {
		var was, is string
		if old != nil {
			was = old.Node()
			tell(f.byNode[was], key, old, new)
		}
		if new != nil {
			if is = new.Node(); old == nil || is != was {
				tell(f.byNode[is], key, old, new)
			}
		}
	}
	tell(f.all, key, old, new)
}

func tell(entries []*entry, key kube.Key, old, new *kube.Object) {
	for _, e := range entries {
		if old != nil && e.sel.Matches(old) || new != nil && e.sel.Matches(new) {
			e.resource.touch(key)
		}
	}
}

func (f *feed) add(e *entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case e.sel.Name != "":
		f.byName[e.sel.Name] = append(f.byName[e.sel.Name], e)
	case e.sel.Node != "":
		f.byNode[e.sel.Node] = append(f.byNode[e.sel.Node], e)
	default:
		f.all = append(f.all, e)
	}
}

func (f *feed) remove(e *entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case e.sel.Name != "":
		drop(f.byName, e.sel.Name, e)
	case e.sel.Node != "":
		drop(f.byNode, e.sel.Node, e)
	default:
		f.all = without(f.all, e)
	}
}

func (f *feed) addKey(key kube.Key, r toucher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.byKey[key] = append(f.byKey[key], r)
}

func (f *feed) removeKey(key kube.Key, r toucher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	drop(f.byKey, key, r)
}

func drop[K, V comparable](m map[K][]V, key K, v V) {
	if rest := without(m[key], v); len(rest) > 0 {
		m[key] = rest
	} else {
		delete(m, key)
	}
}

// without takes one v out; the order of the others doesn't matter.
func without[V comparable](all []V, v V) []V {
	for i, have := range all {
		if have == v {
			last := len(all) - 1
			all[i] = all[last]
			var zero V
			all[last] = zero
			return all[:last]
		}
	}
	return all
}

// feeds are the open ones, shared by all sessions.
type feeds struct {
	collections Collections
	sites       Sites // nil: all edges get the same of everything

	mu         sync.Mutex
	open       map[feedKey]*feed
	known      map[schema.GroupVersionResource]*collection
	selections map[selected]*kube.Selection
}

// collection names a collection, for all sessions that have an interest in it.
type collection struct {
	gvr   schema.GroupVersionResource
	proto *topicpb.Resource // as it goes over the link
}

// selected is a set that all nodes select by the same words.
type selected struct {
	gvr    schema.GroupVersionResource
	source kube.Source
}

// maxShared bounds the shared sets, so that no edge can fill the memory with names. Sets above
// it each session has for itself.
const maxShared = 256

func (x *feeds) collection(gvr schema.GroupVersionResource) *collection {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c, ok := x.known[gvr]; ok {
		return c
	}
	c := &collection{gvr, &topicpb.Resource{Group: gvr.Group, Version: gvr.Version, Resource: gvr.Resource}}
	if len(x.known) < maxShared {
		x.known[gvr] = c
	}
	return c
}

// selection parses an interest's selection. One that names neither a node nor an object nor a label
// is likely to be other edges' selection, too.
func (x *feeds) selection(gvr schema.GroupVersionResource, from kube.Source) (*kube.Selection, error) {
	key := selected{gvr, from}
	x.mu.Lock()
	s, ok := x.selections[key]
	x.mu.Unlock()
	if ok {
		return s, nil
	}
	s, err := kube.Select(gvr, from)
	if err != nil || from.Namespace != "" || from.Labels != "" || s.Name != "" || s.Node != "" {
		return s, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if first, ok := x.selections[key]; ok {
		return first, nil
	}
	if len(x.selections) < maxShared {
		x.selections[key] = s
	}
	return s, nil
}

func (x *feeds) get(key feedKey) *feed {
	x.mu.Lock()
	defer x.mu.Unlock()
	f, ok := x.open[key]
	if !ok {
		f = &feed{key: key, byNode: map[string][]*entry{}, byName: map[string][]*entry{}, byKey: map[kube.Key][]toucher{}}
		f.store, f.release = x.collections.Open(key.gvr)
		if key.site != "" {
			f.follow(x.sites)
		} else {
			f.cancel = f.store.Observe(f.changed)
		}
		x.open[key] = f
	}
	f.users++
	if f.ending != nil {
		f.ending.Stop()
		f.ending = nil
	}
	return f
}

func (x *feeds) put(f *feed) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if f.users--; f.users > 0 {
		return
	}
	// An edge that comes back soon finds the changes since in the feed's history.
	var ending *time.Timer
	ending = time.AfterFunc(linger, func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		if f.ending != ending {
			return // it has users again
		}
		f.cancel()
		f.release()
		delete(x.open, f.key)
	})
	f.ending = ending
}

// follow makes the feed one of a site's projection of its store.
func (f *feed) follow(sites Sites) {
	base := f.store
	f.project = newProjection(f.key.site, sites, base)
	f.store = f.project.store
	ended := make(chan struct{})
	cancels := []func(){base.Observe(f.project.changed), f.store.Observe(f.changed)}
	f.cancel = func() {
		close(ended)
		for _, cancel := range cancels {
			cancel()
		}
	}
	go func() {
		select {
		case <-base.Synced():
			f.project.fill()
		case <-ended:
		}
	}()
}

// sitesChanged makes projections again, and has their sessions look whether they still are
// of the same site.
func (x *feeds) sitesChanged() {
	x.mu.Lock()
	var all []*feed
	for _, f := range x.open {
		if f.project != nil {
			all = append(all, f)
		}
	}
	x.mu.Unlock()
	for _, f := range all {
		f.project.fill()
		f.mu.RLock()
		for _, e := range f.all {
			if r, ok := e.resource.(interface{ moved() }); ok {
				r.moved()
			}
		}
		f.mu.RUnlock()
	}
}
