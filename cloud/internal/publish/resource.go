package publish

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/kube"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

type phase int

const (
	fresh phase = iota // not compared with what the edge holds yet: changes need no note
	asked              // the edge was asked for its inventory
	live               // what the edge holds is what we sent; changes flow
)

// resource is one collection, as one session has it.
type resource struct {
	*collection
	session   *session
	feed      *feed // nil until something needs it, and for those that are watched one by one
	interests []*interest

	edge        digest            // what the edge said it holds, until that is settled
	edgeUnknown bool              // it said something that can't be compared
	newest      uint64            // the greatest resourceVersion among that; 0: unknown
	expects     bool              // the edge is told what it should hold, and may answer once that it doesn't
	mistaken    bool              // it has answered that: it waits for another expectation
	unmet       bool              // an expectation was reached, and waits for the parked
	only        *[buckets]bool    // the buckets whose entries were asked for, nil for all
	parked      map[kube.Key]bool // pods that wait for what they depend on
	marks       []*interest       // marks that were reached, and wait for the parked
	waiting     bool              // somebody wakes the loop when the store has synced
	told        bool              // that cloudcore can't follow it

	// Under the session's lock.
	phase phase
	dirty map[kube.Key]struct{}
}

func (s *session) resource(gvr schema.GroupVersionResource) *resource {
	r := s.resourceOf(gvr)
	if r == nil {
		r = &resource{session: s, collection: s.part.feeds.collection(gvr)}
		s.resources = append(s.resources, r)
	}
	return r
}

// resourceOf returns nil for what the session has not heard of yet. A session has some 14 resources; a map of them would take more memory than all that it leads to.
func (s *session) resourceOf(gvr schema.GroupVersionResource) *resource {
	for _, r := range s.resources {
		if r.gvr == gvr {
			return r
		}
	}
	return nil
}

func (r *resource) openFeed() *feed {
	if r.feed == nil {
		r.feed = r.session.part.feeds.get(r.gvr)
	}
	return r.feed
}

// idle lets go of a collection that nobody wants any more.
func (r *resource) idle() {
	if len(r.interests) > 0 || r.session.deps != nil && (r.gvr == kube.Pods || r.session.deps.concerns(r.gvr)) {
		return
	}
	r.closeFeed()
}

func (r *resource) closeFeed() {
	if r.feed != nil {
		r.session.part.feeds.put(r.feed)
		r.feed, r.waiting = nil, false
	}
}

// touch notes that a key has changed. It is called by whoever changed it, with the store held.
func (r *resource) touch(key kube.Key) {
	if r.note(key) {
		r.session.signal()
	}
}

// note is touch without the signal; it reports whether one is needed.
func (r *resource) note(key kube.Key) bool {
	r.session.mu.Lock()
	defer r.session.mu.Unlock()
	if r.phase == fresh {
		return false
	}
	r.mark(key)
	return true
}

// mark puts a key in the queue unless it waits there. The session's lock is held.
func (r *resource) mark(key kube.Key) {
	if _, ok := r.dirty[key]; ok {
		return
	}
	if r.dirty == nil {
		r.dirty = map[kube.Key]struct{}{}
	}
	r.dirty[key] = struct{}{}
	r.session.inbox.queue = append(r.session.inbox.queue, item{resource: r, key: key})
}

// clean takes a key out of the dirty set. The session's lock is held.
func (r *resource) clean(key kube.Key) {
	delete(r.dirty, key)
	if len(r.dirty) == 0 {
		r.dirty = nil
	}
}

func (r *resource) enter(p phase) {
	r.session.mu.Lock()
	r.phase = p
	r.session.mu.Unlock()
}

// queue marks many keys.
func (r *resource) queue(keys []kube.Key) {
	r.session.mu.Lock()
	defer r.session.mu.Unlock()
	for _, key := range keys {
		r.mark(key)
	}
}

// look returns the newest state of a key, wanted or not. known is false while nobody can tell.
func (r *resource) look(key kube.Key) (o *kube.Object, known bool) {
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
	return nil, true // nothing of the session looks at it any more
}

// wants reports whether the edge is to hold o.
func (r *resource) wants(o *kube.Object) bool {
	for _, i := range r.interests {
		if i.standing == granted && i.sel.Matches(o) {
			return true
		}
	}
	d := r.session.deps
	return d != nil && d.has(kube.Ref{Resource: r.gvr, Key: o.Key})
}

// wanted collects all that the edge is to hold.
func (r *resource) wanted() map[kube.Key]*kube.Object {
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

// ready reports whether all that the edge is to hold of the resource is known. An interest that stays undecided holds the others up for a moment
// only; what it would bring comes later.
func (r *resource) ready() bool {
	var open, young bool
	d := r.session.deps
	allowed := d != nil && d.concerns(r.gvr)
	for _, i := range r.interests {
		if i.single != nil {
			r.session.follow(i)
		}
		switch i.standing {
		case undecided:
			open, young = true, young || time.Since(i.since) < decideSoon
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

// await wakes the loop when the store has synced.
func (r *resource) await() {
	if r.waiting {
		return
	}
	r.waiting = true
	s, synced := r.session, r.feed.store.Synced()
	s.wg.Go(func() {
		select {
		case <-synced:
			s.signal()
		case <-s.ctx.Done():
		}
	})
}

// advance brings a resource one phase further where it can, and hands over the objects of interests that came later.
func (s *session) advance(r *resource) error {
	if r.phase == asked || !r.ready() {
		return nil
	}
	if r.phase == fresh {
		return s.begin(r)
	}
	for _, i := range r.interests {
		if i.standing == granted && !i.synced && i.waiting == 0 {
			r.queue(r.keysOf(i))
			s.markSynced(r, i)
		}
	}
	return nil
}

// keysOf lists the objects of i that no interest delivered before wants.
func (r *resource) keysOf(i *interest) []kube.Key {
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

// begin compares what the edge holds with what it should.
func (s *session) begin(r *resource) error {
	r.enter(asked) // from here on every change is noted: none falls between this and the comparison
	if s.deps != nil && r.gvr == kube.Pods {
		s.deps.rescan() // changes before were not noted
	}
	for _, i := range r.interests {
		i.counted = i.standing == granted
	}
	ours := r.wanted()
	mine := digestOf(ours)
	edge := r.edge
	switch {
	case !r.edgeUnknown && mine == edge:
		s.part.metrics.equal.Add(1)
		s.settle(r)
		return nil
	case !r.edgeUnknown && edge.count == 0:
		s.part.metrics.full.Add(1)
		r.queue(slices.Collect(maps.Keys(ours)))
		s.settle(r)
		return nil
	}
	if r.feed != nil && !r.edgeUnknown {
		if keys, ok := r.feed.past.since(mine, edge, r.wants); ok {
			s.part.metrics.followed.Add(1)
			r.queue(keys)
			s.settle(r)
			return nil
		}
	}
	if keys, ok := r.later(ours); ok {
		s.part.metrics.later.Add(1)
		r.expects = true
		r.queue(keys)
		s.push(item{resource: r, expect: true})
		return nil
	}
	s.part.metrics.compared.Add(1)
	return s.inquire(&topicpb.InventoryRequest{Resource: r.proto, Buckets: r.edgeUnknown || edge.count > fewEntries})
}

// later finds what is newer than all that the edge holds: where nothing was deleted and the edge had all that was older, that is what it lacks. resourceVersions can be
// compared as numbers (KEP-5504). It costs no inventory where no history reaches back, after a restart of cloudcore above all; whether it was right, the edge sees by the digest
// that it is told to expect. What the numbers of objects rule out is not tried.
func (r *resource) later(ours map[kube.Key]*kube.Object) (keys []kube.Key, ok bool) {
	if r.edgeUnknown || r.newest == 0 {
		return nil, false
	}
	for key, o := range ours {
		version, err := strconv.ParseUint(o.Version, 10, 64)
		if err != nil {
			return nil, false
		}
		if version > r.newest {
			keys = append(keys, key)
		}
	}
	old := uint64(len(ours) - len(keys)) // the edge holds these, and of the others at most as many as there are
	return keys, len(keys) > 0 && old <= r.edge.count && r.edge.count-old <= uint64(len(keys))
}

// hadBefore reports whether o is no newer than what the edge holds, by what it said.
func (r *resource) hadBefore(o *kube.Object) bool {
	if o == nil || r.edgeUnknown || r.newest == 0 {
		return false
	}
	version, err := strconv.ParseUint(o.Version, 10, 64)
	return err == nil && version <= r.newest
}

// expect tells the edge what it should hold now. Its interests are synced by the same State, so that an edge that holds something else takes none of them for it.
// Where a change of the same resource gets into that State behind it, the edge finds a difference that is none: that costs an inventory, once in a session, and nothing else.
func (s *session) expect(r *resource) {
	should := digestOf(r.wanted())
	s.mu.Lock()
	dirty := len(r.dirty) > 0
	s.mu.Unlock()
	if dirty { // something has changed meanwhile and goes first
		s.push(item{resource: r, expect: true})
		return
	}
	if len(r.parked) > 0 {
		r.unmet = true
		return
	}
	s.frame.expect(r, should)
	s.settle(r)
}

// unexpected begins the comparison with an edge that does not hold what it was told to expect.
func (s *session) unexpected(r *resource, holds *topicpb.Digest) {
	s.part.metrics.compared.Add(1)
	r.expects, r.mistaken = false, true
	r.enter(asked)
	var ok bool
	r.edge, ok = digestFrom(holds)
	r.edgeUnknown = !ok
	for _, i := range r.interests {
		i.counted, i.synced = i.standing == granted, false
	}
	if s.deps != nil && s.deps.concerns(r.gvr) {
		s.deps.interest.synced = false
	}
}

func (s *session) inquire(q *topicpb.InventoryRequest) error {
	if err := s.link.Send(s.ctx, topic.InventoryRequest.New(message.Resource{}, q)); err != nil && s.ctx.Err() == nil {
		return err
	}
	return nil
}

// compare acts on an inventory.
func (s *session) compare(in *topicpb.Inventory) error {
	r := s.resourceOf(resourceFrom(in.GetResource()))
	switch {
	case r != nil && r.phase == live && r.expects && in.GetHolds() != nil:
		s.unexpected(r, in.GetHolds())
	case r == nil || r.phase != asked:
		return nil // of a question that matters no more
	}
	ours := r.wanted()
	if sums := in.GetSums(); len(sums) > 0 {
		if len(sums) != buckets*shortSum {
			return outOfTurn("sums of %d bytes, those of all buckets have %d", len(sums), buckets*shortSum)
		}
		only := differing(bucketSums(ours), sums)
		if len(only) == 0 {
			if r.edgeUnknown || digestOf(ours) == r.edge { // what differed has changed back meanwhile
				s.compared(r)
				return nil
			}
			return s.inquire(&topicpb.InventoryRequest{Resource: r.proto})
		}
		r.only = bucketSet(only)
		return s.inquire(&topicpb.InventoryRequest{Resource: r.proto, Only: only})
	}
	theirs := make(map[kube.Key]kube.Sum, len(in.GetEntries()))
	for _, e := range in.GetEntries() {
		theirs[kube.Key{Namespace: e.GetNamespace(), Name: e.GetName()}] = kube.SumOf(e.GetUid(), e.GetResourceVersion())
	}
	if r.only != nil && !r.edgeUnknown && !r.restAgrees(ours, theirs) {
		r.only = nil
		return s.inquire(&topicpb.InventoryRequest{Resource: r.proto})
	}
	var keys []kube.Key
	for key, o := range ours {
		if r.only != nil && !r.only[bucketOf(key)] {
			continue
		}
		if sum, ok := theirs[key]; !ok || sum != o.Sum {
			keys = append(keys, key)
		}
	}
	for key := range theirs {
		if _, ok := ours[key]; !ok && !r.undecided(key) {
			keys = append(keys, key)
		}
	}
	r.queue(keys)
	s.compared(r)
	return nil
}

// compared ends a comparison: all that differs is in the queue.
func (s *session) compared(r *resource) {
	r.only = nil
	if r.mistaken {
		r.mistaken = false
		s.push(item{resource: r, expect: true})
		return
	}
	s.settle(r)
}

// restAgrees reports whether the edge holds, outside the buckets that it was asked about, what it should: its digest less what it has told must be the digest of ours there.
// Otherwise two buckets differ whose short sums don't, or something has changed since.
func (r *resource) restAgrees(ours map[kube.Key]*kube.Object, theirs map[kube.Key]kube.Sum) bool {
	rest, mine := r.edge, digest{}
	for _, sum := range theirs {
		rest.count--
		rest.sum.Xor(sum)
	}
	for key, o := range ours {
		if !r.only[bucketOf(key)] {
			mine.count++
			mine.sum.Xor(o.Sum)
		}
	}
	return rest == mine
}

// undecided reports whether the edge may yet be allowed to hold a key: then it isn't told to let go of it.
func (r *resource) undecided(key kube.Key) bool {
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
		if r.feed == nil { // what it selects isn't followed yet
			return true
		}
		if o := r.feed.store.Get(key); o != nil && i.sel.Matches(o) {
			return true
		}
	}
	return false
}

func bucketSet(all []uint32) *[buckets]bool {
	var set [buckets]bool
	for _, b := range all {
		set[b] = true
	}
	return &set
}

// settle makes a resource live: all that differs is in the queue, and behind it the marks of its interests.
func (s *session) settle(r *resource) {
	r.enter(live)
	r.edge, r.only = digest{}, nil
	for _, i := range r.interests { // one that came in between has its turn in advance
		if i.counted && i.standing == granted && !i.synced && i.waiting == 0 {
			s.markSynced(r, i)
		}
	}
	if s.deps != nil && s.deps.concerns(r.gvr) {
		s.markSynced(r, s.deps.interest)
	}
}

func (s *session) markSynced(r *resource, i *interest) {
	i.waiting++
	s.push(item{resource: r, mark: i})
}

// delivered is called when all that was queued before an interest's mark was sent.
func (s *session) delivered(r *resource, i *interest) {
	if len(r.parked) > 0 {
		r.marks = append(r.marks, i)
		return
	}
	i.waiting--
	if r.phase != live { // the edge has said meanwhile that it holds something else: marked again once it is compared
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
func (s *session) emit(r *resource, key kube.Key) {
	o, known := r.look(key)
	if !known {
		return // whoever learns it touches the key again
	}
	if s.deps != nil && !s.deps.before(r, key, o) {
		if r.parked == nil {
			r.parked = map[kube.Key]bool{}
		}
		r.parked[key] = true
		return
	}
	if r.parked != nil {
		s.unpark(r, key)
	}
	if o != nil && !r.wants(o) {
		o = nil
	}
	s.frame.change(r, key, o)
}

// unpark lets the marks go that waited for the last parked pod: they count when its change is in the frame.
func (s *session) unpark(r *resource, key kube.Key) {
	delete(r.parked, key)
	if len(r.parked) > 0 {
		return
	}
	r.parked = nil
	for _, i := range r.marks {
		s.push(item{resource: r, mark: i})
	}
	r.marks = nil
	if r.unmet {
		r.unmet = false
		s.push(item{resource: r, expect: true})
	}
}

// unwant queues what only i wanted: the edge is told that it is no longer its to hold.
func (r *resource) unwant(i *interest) {
	if r.phase == fresh {
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

func (r *resource) wantedByOther(i *interest, o *kube.Object) bool {
	for _, other := range r.interests {
		if other != i && other.standing == granted && other.sel.Matches(o) {
			return true
		}
	}
	d := r.session.deps
	return d != nil && d.has(kube.Ref{Resource: r.gvr, Key: o.Key})
}
