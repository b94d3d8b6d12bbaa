package publish

import (
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/dependency"
)

func (r *resourceSync) openFeed() *feed {
	if r.feed == nil {
		r.feed = r.session.part.feeds.get(feedKey{r.gvr, r.session.siteFor(r.gvr)})
	}
	return r.feed
}

// idle releases a collection that is not needed any more.
func (r *resourceSync) idle() {
	if len(r.interests) > 0 || r.session.deps != nil && (r.gvr == kube.Pods || r.session.deps.concerns(r.gvr)) {
		return
	}
	r.closeFeed()
}

func (r *resourceSync) closeFeed() {
	if r.feed != nil {
		r.session.part.feeds.put(r.feed)
		r.feed, r.waiting = nil, false
	}
}

// touch notes that a key has changed. The writer of the change calls it, with the store locked.
func (r *resourceSync) touch(key kube.Key) {
	if r.note(key, pressing) {
		r.session.signal()
	}
}

// note is touch without the signal; it reports whether one is needed.
func (r *resourceSync) note(key kube.Key, wait time.Duration) bool {
	r.session.mu.Lock()
	defer r.session.mu.Unlock()
	if !r.noted {
		return false
	}
	r.mark(key, wait)
	return r.flows
}

// mark puts a key in the queue unless it waits there; while changes don't flow, it waits next to
// it. The session's lock is held.
func (r *resourceSync) mark(key kube.Key, wait time.Duration) {
	if _, ok := r.dirty[key]; ok {
		return
	}
	if r.dirty == nil {
		r.dirty = map[kube.Key]struct{}{}
	}
	r.dirty[key] = struct{}{}
	if r.flows {
		r.session.inbox.put(item{resource: r, key: key}, wait)
	}
}

// clean takes a key out of the dirty set. The session's lock is held.
func (r *resourceSync) clean(key kube.Key) {
	delete(r.dirty, key)
	if len(r.dirty) == 0 {
		r.dirty = nil
	}
}

// publishState shows the state to the goroutines that note changes. Keys that waited next to the
// queue goes into it.
func (r *resourceSync) publishState() {
	s := r.session
	s.mu.Lock()
	defer s.mu.Unlock()
	r.noted = r.state != unsynced
	flowed := r.flows
	r.flows = r.state.flows()
	if !flowed && r.flows {
		for key := range r.dirty {
			s.inbox.put(item{resource: r, key: key}, pressing)
		}
	}
}

// queue marks many keys.
func (r *resourceSync) queue(keys []kube.Key) {
	r.session.mu.Lock()
	defer r.session.mu.Unlock()
	for _, key := range keys {
		r.mark(key, pressing)
	}
}

// await wakes the loop when the store has synced, and once when it is found unavailable.
func (r *resourceSync) await() {
	if r.waiting {
		return
	}
	r.waiting = true
	s, store, optional := r.session, r.feed.store, r.optional()
	s.wg.Go(func() {
		var look <-chan time.Time
		if optional {
			look = time.Tick(failureLook)
		}
		for {
			select {
			case <-store.Synced():
				s.signal()
				return
			case <-look:
				if denied(store.Failure()) {
					s.signal()
					look = nil
				}
			case <-s.ctx.Done():
				return
			}
		}
	})
}

// failureLook is how often a store that does not sync is asked for the reason.
const failureLook = 2 * time.Second

// optional reports whether pods are sent without a resource that can't be followed.
func (r *resourceSync) optional() bool {
	d := r.session.deps
	return d != nil && d.concerns(r.gvr) && !dependency.Always(r.gvr) && len(r.interests) == 0
}

// unavailable reports whether the resource is one that pods need, but cloudcore may not follow or
// kube-apiserver does not serve: a cluster with the rights of an older cloudcore. Its pods are sent
// without it, and the edge keeps its objects of it.
func (r *resourceSync) unavailable() bool {
	return r.optional() && r.feed != nil && !r.feed.store.HasSynced() && denied(r.feed.store.Failure())
}

func denied(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err)
}

// moved is called when sites have changed.
func (r *resourceSync) moved() { r.session.signal() }

// look returns the newest state of a key, wanted or not. known is false until that is known.
func (r *resourceSync) look(key kube.Key) (o *kube.Object, known bool) {
	if h, ok := r.session.held[kube.Ref{Resource: r.gvr, Key: key}]; ok {
		state := h.load()
		if state.Err != nil {
			return nil, true
		}
		return state.Object, state.Known
	}
	if r.feed != nil {
		return r.feed.store.Get(key), r.feed.store.HasSynced()
	}
	return nil, true // the session has no more use for it
}

// wants reports whether the edge should hold o.
func (r *resourceSync) wants(o *kube.Object) bool {
	for _, i := range r.interests {
		if i.standing == granted && i.sel.Matches(o) {
			return true
		}
	}
	d := r.session.deps
	return d != nil && d.has(kube.Ref{Resource: r.gvr, Key: o.Key})
}

// wanted collects all that the edge is to hold.
func (r *resourceSync) wanted() map[kube.Key]*kube.Object {
	out := map[kube.Key]*kube.Object{}
	for _, i := range r.interests {
		if i.standing != granted {
			continue
		}
		if i.single != nil {
			if o, _ := r.look(i.single.Key); o != nil {
				out[o.Key] = o
			}
			continue
		}
		r.feed.store.Each(i.sel, func(o *kube.Object) bool { out[o.Key] = o; return true })
	}
	if d := r.session.deps; d != nil {
		for ref := range d.refs {
			if ref.Resource == r.gvr {
				if o, _ := r.look(ref.Key); o != nil {
					out[o.Key] = o
				}
			}
		}
	}
	return out
}

func (r *resourceSync) wantedByOther(i *interest, o *kube.Object) bool {
	for _, other := range r.interests {
		if other != i && other.standing == granted && other.sel.Matches(o) {
			return true
		}
	}
	d := r.session.deps
	return d != nil && d.has(kube.Ref{Resource: r.gvr, Key: o.Key})
}

// unwant queues objects that only i wanted: a deletion goes to the edge, which no longer is to hold
// it.
func (r *resourceSync) unwant(i *interest) {
	if r.state == unsynced {
		return
	}
	if i.single != nil {
		r.queue([]kube.Key{i.single.Key})
		return
	}
	if r.feed == nil {
		return
	}
	var keys []kube.Key
	r.feed.store.Each(i.sel, func(o *kube.Object) bool {
		if !r.wantedByOther(i, o) {
			keys = append(keys, o.Key)
		}
		return true
	})
	r.queue(keys)
}

// undecided reports whether the edge may yet be allowed to hold a key: then it isn't asked to drop
// it.
func (r *resourceSync) undecided(key kube.Key) bool {
	for _, i := range r.interests {
		if i.standing != undecided {
			continue
		}
		if i.single != nil {
			if i.single.Key == key {
				return true
			}
			continue
		}
		if r.feed == nil { // its selection isn't followed yet
			return true
		}
		if o := r.feed.store.Get(key); o != nil && i.sel.Matches(o) {
			return true
		}
	}
	return false
}

// keysOf lists the objects of i that belong to no interest delivered before.
func (r *resourceSync) keysOf(i *interest) []kube.Key {
	if i.single != nil {
		return []kube.Key{i.single.Key}
	}
	var keys []kube.Key
	r.feed.store.Each(i.sel, func(o *kube.Object) bool {
		for _, other := range r.interests {
			if other != i && other.standing == granted && (other.synced || other.waiting > 0) && other.sel.Matches(o) {
				return true
			}
		}
		keys = append(keys, o.Key)
		return true
	})
	return keys
}

// markSynced queues a sync marker. Those of an edge that comes back wait for each other, unless
// there is a State that goes at once and takes them along, as with an expectation.
func (s *session) markSynced(r *resourceSync, i *interest) {
	i.waiting++
	mark := item{resource: r, mark: i}
	if !s.frame.empty() || !s.resuming() {
		s.push(mark)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	wait := gatherFirstMarks
	if s.returned {
		wait = gatherMarks
	}
	s.inbox.put(mark, wait)
	s.wakeLater(wait)
}

// resuming reports whether the session has just begun and some of its resources are not compared
// yet.
func (s *session) resuming() bool {
	if time.Since(s.began) >= resumeSoon {
		return false
	}
	return slices.ContainsFunc(s.resources, func(r *resourceSync) bool {
		wanted := len(r.interests) > 0 || s.deps != nil && s.deps.concerns(r.gvr)
		return wanted && r.state != streaming
	})
}
