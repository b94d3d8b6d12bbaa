package publish

import (
	"cmp"
	"slices"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// ready reports whether all that the edge is to hold of the resource is known. An interest that
// stays undecided holds the others up for a moment only; its objects come later.
func (r *resourceSync) ready() bool {
	var open, young bool
	d := r.session.deps
	allowed := d != nil && d.concerns(r.gvr)
	for _, i := range r.interests {
		if i.single != nil {
			r.session.follow(i)
		}
		switch i.standing {
		case undecided:
			open, young = true, young || r.session.now().sub(i.since) < decideSoon
		case granted:
			allowed = true
		}
	}
	if open && (young || !allowed) {
		return false
	}
	if r.feed != nil && !r.feed.store.HasSynced() {
		r.await()
		return false
	}
	return d == nil || !d.concerns(r.gvr) || d.complete()
}

// advance brings a resource one state further where it can, and hands over the objects of interests
// that came later.
func (s *session) advance(r *resourceSync) error {
	switch r.state {
	case unsynced:
		if r.ready() {
			return s.begin(r)
		}
	case catchingUp:
		if r.confirming.caughtUp() && r.ready() {
			return s.begin(r)
		}
	case confirming:
		if s.confirmed(r) && r.ready() {
			if s.deps != nil && r.gvr == kube.Pods {
				s.deps.rescan()
			}
			return s.perform(r, r.comparison.confirmed(r.wanted(), r.undecided))
		}
	case expecting, streaming:
		if r.surprised || r.compared || !r.ready() {
			return nil
		}
		for _, i := range r.interests {
			if i.standing == granted && !i.synced && i.waiting == 0 {
				r.queue(r.keysOf(i))
				s.markSynced(r, i)
			}
		}
	}
	return nil
}

// begin compares the edge's objects with ours.
func (s *session) begin(r *resourceSync) error {
	s.mu.Lock()
	r.noted = true // from here on every change is noted: no change falls between this and the comparison
	s.mu.Unlock()
	if s.deps != nil && r.gvr == kube.Pods {
		s.deps.rescan() // changes before were not noted
	}
	for _, i := range r.interests {
		i.counted = i.standing == granted
	}
	if r.feed == nil {
		r.written = 0 // objects that are watched one by one: edges don't write them
	}
	var history func(now, then digest) ([]kube.Key, bool)
	if r.feed != nil {
		history = func(now, then digest) ([]kube.Key, bool) { return r.feed.past.since(now, then, r.wants) }
	}
	return s.perform(r, r.comparison.begin(r.wanted(), history))
}

// perform carries out the effects of a transition.
func (s *session) perform(r *resourceSync, e effects) error {
	s.part.metrics.resumed(e.how)
	r.publishState()
	slices.SortFunc(e.send, compareKeys) // objects of like names are alike: in this order they are compressed best
	r.queue(e.send)
	if e.expect {
		s.push(item{resource: r, expect: true})
	}
	if e.catchUp > 0 {
		r.waitFor(&confirmation{})
		s.catchUp(r, e.catchUp)
	}
	if len(e.confirm) > 0 {
		s.confirm(r, e.confirm)
	}
	if e.settled {
		r.waitFor(nil)
		s.settled(r)
	}
	if r.state == streaming || e.expect {
		s.signal() // pods that waited for this, and resources that are confirmed by this one
	}
	if e.ask == nil {
		return nil
	}
	e.ask.Resource = r.proto
	if err := s.link.Send(s.ctx, topic.InventoryRequest.New(message.Resource{}, e.ask)); err != nil && s.ctx.Err() == nil {
		return err
	}
	return nil
}

func compareKeys(a, b kube.Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// settled queues the sync markers of a resource's interests.
func (s *session) settled(r *resourceSync) {
	for _, i := range r.interests { // one that came in between has its turn in advance
		if i.counted && i.standing == granted && !i.synced && i.waiting == 0 {
			s.markSynced(r, i)
		}
	}
	if s.deps != nil && s.deps.concerns(r.gvr) {
		s.markSynced(r, s.deps.interest)
	}
}

// compare acts on an inventory.
func (s *session) compare(in *topicpb.Inventory) error {
	r := s.resourceOf(resourceFrom(in.GetResource()))
	switch {
	case r != nil && r.state == streaming && r.expected && in.GetHolds() != nil:
		for _, i := range r.interests {
			i.counted, i.synced = i.standing == granted, false
		}
		if s.deps != nil && s.deps.concerns(r.gvr) {
			s.deps.interest.synced = false
		}
		if err := s.perform(r, r.comparison.unexpected(in.GetHolds())); err != nil {
			return err
		}
	case r == nil || r.state != comparing:
		return nil // of a question that matters no more
	}
	if sums := in.GetSums(); len(sums) > 0 {
		if len(sums) != buckets*shortSum {
			return outOfTurn("sums of %d bytes, those of all buckets have %d", len(sums), buckets*shortSum)
		}
		return s.perform(r, r.comparison.sums(r.wanted(), sums))
	}
	return s.perform(r, r.comparison.entries(r.wanted(), in.GetEntries(), r.undecided))
}

// confirm has cloudcore's copy brought up to the edge's versions of some keys.
func (s *session) confirm(r *resourceSync, keys map[kube.Key]uint64) {
	c := &confirmation{objects: map[kube.Key]*heldObject{}}
	r.waitFor(c)
	var version uint64
	for key, v := range keys {
		h, ok := s.held[kube.Ref{Resource: r.gvr, Key: key}]
		switch {
		case ok:
			c.objects[key] = h
			h.caughtUp.Store(false)
			h.watch.CatchUp(v)
		case r.feed != nil:
			version = max(version, v)
		default: // no pod refers to it, as far as the pods are known
			c.wanted = true
		}
	}
	if r.feed != nil {
		c.wanted = s.deps != nil && s.deps.concerns(r.gvr)
	}
	if version > 0 {
		s.catchUp(r, version)
	}
}

// waitFor sets the confirmation that the resource waits for; nil: it does not wait.
func (r *resourceSync) waitFor(c *confirmation) {
	if before := r.confirming; before != nil && before.cancel != nil {
		before.cancel()
	}
	r.confirming = c
}

// caughtUp reports whether the collection's copy is as new as it shall be.
func (c *confirmation) caughtUp() bool { return c == nil || !c.collection }

// catchUp has the copy of a resource's collection brought up to a version.
func (s *session) catchUp(r *resourceSync, version uint64) {
	c := r.confirming
	c.collection = true
	c.cancel = s.part.collections.CatchUp(r.gvr, version, func() {
		s.mu.Lock()
		s.inbox.caughtUp = append(s.inbox.caughtUp, c)
		s.mu.Unlock()
		s.signal()
	})
}

// confirmed reports whether all that a resource waits for has been confirmed.
func (s *session) confirmed(r *resourceSync) bool {
	c := r.confirming
	if c == nil {
		return true
	}
	if c.collection || c.wanted && s.deps != nil && !s.deps.confirmed(r.gvr) {
		return false
	}
	for key, h := range c.objects {
		// One that no pod refers to any more is let go of, and one that the node may not have.
		if s.held[kube.Ref{Resource: r.gvr, Key: key}] == h && !h.caughtUp.Load() && h.load().Err == nil {
			return false
		}
	}
	return true
}

// expect sends the edge the digest of the set that it should hold now. Its interests are synced by
// the same State, so an edge with another set doesn't mark them as synced. Where a change of the
// same resource gets into that State behind it, the edge reports a difference that does not exist:
// that costs one inventory, once in a session.
func (s *session) expect(r *resourceSync) error {
	s.mu.Lock()
	dirty := len(r.dirty) > 0
	s.mu.Unlock()
	switch {
	case r.heldBack:
		r.heldBack = false
		return s.perform(r, r.comparison.reached(true))
	case dirty: // a change has come and goes first
		s.push(item{resource: r, expect: true})
		return nil
	case len(r.blockedPods) > 0:
		r.heldExpect = true
		return nil
	}
	s.frame.expect(r.proto, digestOf(r.wanted()))
	return s.perform(r, r.comparison.reached(false))
}

// delivered is called when all that was queued before an interest's sync marker was sent.
func (s *session) delivered(r *resourceSync, i *interest) {
	if len(r.blockedPods) > 0 {
		r.heldMarkers = append(r.heldMarkers, i)
		return
	}
	i.waiting--
	if r.state != streaming { // the edge has reported another set in the meantime: marked again once it is compared
		return
	}
	if i.gone || i.synced || i.standing != granted || i.waiting > 0 {
		return
	}
	if s.deps != nil && s.deps.interest == i && !s.deps.settled() {
		return
	}
	i.synced = true
	s.frame.synced(i.id)
}

// emit sends the newest state of a key.
func (s *session) emit(r *resourceSync, key kube.Key) {
	o, known := r.look(key)
	if !known {
		return // it is queued again once it is known
	}
	if r.feed == nil && !r.sendable(o) { // its watch may lag behind the edge's version
		r.heldBack = true
		s.mu.Lock()
		if r.dirty == nil {
			r.dirty = map[kube.Key]struct{}{}
		}
		r.dirty[key] = struct{}{}
		s.mu.Unlock()
		return
	}
	if s.deps != nil && !s.deps.before(r, key, o) {
		if r.blockedPods == nil {
			r.blockedPods = map[kube.Key]bool{}
		}
		r.blockedPods[key] = true
		return
	}
	if r.blockedPods != nil {
		s.unblock(r, key)
	}
	if o != nil && !r.wants(o) {
		o = nil
	}
	if o == nil && r.feed != nil {
		s.frame.deletion(r.proto, key, r.feed.store.Version())
		return
	}
	s.frame.change(r.proto, key, o, s.unnamed)
}

// unblock lets the markers go that waited for the last blocked pod: they count when its change
// is in the frame.
func (s *session) unblock(r *resourceSync, key kube.Key) {
	delete(r.blockedPods, key)
	if len(r.blockedPods) > 0 {
		return
	}
	r.blockedPods = nil
	for _, i := range r.heldMarkers {
		s.push(item{resource: r, mark: i})
	}
	r.heldMarkers = nil
	if r.heldExpect {
		r.heldExpect = false
		s.push(item{resource: r, expect: true})
	}
}
