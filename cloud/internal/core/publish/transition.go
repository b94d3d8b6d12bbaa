package publish

import (
	"maps"
	"slices"
	"strconv"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// syncState is how far one resource of a session is. The transitions are in this file
// and nowhere else, as pure functions of the state:
//
//	unsynced ---- begin ----> streaming   the edge holds the right set, or is empty, or holds the right
//	                                      set of some time ago, by the history
//	              begin ----> expecting   objects newer than all that it holds may be all that it lacks
//	              begin ----> comparing   neither: it is asked
//	              begin ----> catchingUp  kube-apiserver has accepted a write of this edge that
//	                                      cloudcore's copy may lack
//	catchingUp -- begin ----> as above    the copy is known to be no older than that write
//	expecting --- reached --> streaming   unless the edge answers that it holds something else
//	              reached --> comparing   something older has changed in the meantime
//	streaming --- surprised -> comparing  it has answered so
//	comparing --- compare --> streaming   all that differs is in the queue
//	              compare --> confirming  the edge holds objects newer than cloudcore's copy, or absent
//	                                      from it
//	confirming -- compare --> streaming   the copy is known to be no older than that
type syncState int8

const (
	unsynced   syncState = iota // not compared yet: changes need no note
	comparing                   // the edge was asked for its objects; changes are noted and wait
	catchingUp                  // cloudcore's copy may lag behind the edge's own writes: it is caught up first; changes wait
	confirming                  // cloudcore's copy may lag behind the edge: it is caught up first; changes wait
	expecting                   // newer objects are on their way, and the digest that the edge should have then
	streaming                   // the edge's set is the sent one; changes flow
)

func (s syncState) String() string {
	return [...]string{"unsynced", "comparing", "catchingUp", "confirming", "expecting", "streaming"}[s]
}

// flows reports whether changes are sent in this state.
func (s syncState) flows() bool { return s == streaming || s == expecting }

// comparison is the state of a resource, and the input of its transitions.
type comparison struct {
	edge        digest                 // the edge's own, until that is settled
	newest      uint64                 // the greatest resourceVersion among that; 0: unknown
	written     uint64                 // the newest version of the edge's accepted writes that is not in ours yet; 0: none
	only        *[buckets]bool         // the buckets whose entries were asked for, nil for all
	theirs      map[kube.Key]heldEntry // of an inventory, while confirming
	state       syncState
	edgeUnknown bool // its digest can't be compared
	expected    bool // the edge has the expected digest, and may answer once that it differs
	surprised   bool // it has answered that: it waits for another expectation
	compared    bool // all differences are in the queue: no sent object can be older than the edge's
}

// heldEntry is one object that an edge holds.
type heldEntry struct {
	sum     kube.Sum
	version uint64 // its resourceVersion, 0 where it is no number
}

// effects are the actions of a transition, in this order.
type effects struct {
	send    []kube.Key                // their newest state is queued
	expect  bool                      // behind it, the digest that the edge should have then
	ask     *topicpb.InventoryRequest // without its resource
	catchUp uint64                    // the copy is brought up to this version
	confirm map[kube.Key]uint64       // the edge's objects of these keys are newer than the copy, or absent from it, as of these versions
	settled bool                      // the resource streams: its interests are synced behind the queue
	how     resume                    // how an edge that came back got there
}

type resume int

const (
	resumeNone resume = iota
	resumeEqual
	resumeFull
	resumeFollowed
	resumeLater
	resumeCompared
	resumeConfirmed
)

// begin compares the edge's set with ours. history finds the changes since the edge held the right
// set, where a history reaches back so far; nil: no history. The edge drops its local copies of
// accepted writes with the comparison, so ours must hold them first.
func (c *comparison) begin(ours map[kube.Key]*kube.Object, history func(now, then digest) ([]kube.Key, bool)) effects {
	if c.written > 0 {
		e := effects{catchUp: c.written}
		c.state, c.written = catchingUp, 0
		return e
	}
	mine := digestOf(ours)
	switch {
	case !c.edgeUnknown && mine == c.edge:
		return c.settle(effects{how: resumeEqual})
	case c.holdsNothing():
		return c.settle(effects{how: resumeFull, send: slices.Collect(maps.Keys(ours))})
	}
	if history != nil && !c.edgeUnknown {
		if keys, ok := history(mine, c.edge); ok {
			return c.settle(effects{how: resumeFollowed, send: keys})
		}
	}
	if keys, ok := c.later(ours); ok {
		c.state, c.expected = expecting, true
		return effects{how: resumeLater, send: keys, expect: true}
	}
	c.state = comparing
	return effects{how: resumeCompared, ask: &topicpb.InventoryRequest{Buckets: c.edgeUnknown || c.edge.count > fewEntries}}
}

// holdsNothing reports whether the edge has reported that it holds no object of the resource.
func (c *comparison) holdsNothing() bool { return !c.edgeUnknown && c.edge.count == 0 }

// later finds objects newer than the newest one of the edge: if no object was deleted and the edge
// had all older ones, those are the missing ones. resourceVersions can be compared as numbers
// (KEP-5504). It costs no inventory where no history reaches back, after a restart of cloudcore
// above all; the edge verifies the result by the digest to expect. It is not tried where the
// numbers of objects rule it out.
func (c *comparison) later(ours map[kube.Key]*kube.Object) (keys []kube.Key, ok bool) {
	if c.edgeUnknown || c.newest == 0 {
		return nil, false
	}
	for key, o := range ours {
		version, err := strconv.ParseUint(o.Version, 10, 64)
		if err != nil {
			return nil, false
		}
		if version > c.newest {
			keys = append(keys, key)
		}
	}
	old := uint64(len(ours) - len(keys)) // the edge holds these, and of the others at most as many as there are
	return keys, len(keys) > 0 && old <= c.edge.count && c.edge.count-old <= uint64(len(keys))
}

// newer reports whether o is newer than all that the edge holds, so that it can't be older than
// anything there.
func (c *comparison) newer(o *kube.Object) bool {
	return c.holdsNothing() || !c.edgeUnknown && c.newest != 0 && versionOf(o) > c.newest
}

// sendable reports whether the state of an object, nil without one, can't be older than
// the edge's version of it.
func (c *comparison) sendable(o *kube.Object) bool {
	return c.state == streaming || c.compared || o != nil && c.newer(o)
}

// had reports whether o is no newer than the edge's version, by its own list.
func (c *comparison) had(o *kube.Object) bool {
	v := versionOf(o)
	return !c.edgeUnknown && c.newest != 0 && v != 0 && v <= c.newest
}

// versionOf returns the edges' version of an object as a number, 0 if it is not a number.
func versionOf(o *kube.Object) uint64 {
	v, err := strconv.ParseUint(o.Version, 10, 64)
	if err != nil {
		return 0
	}
	return v
}

// reached is called when all was sent that goes before an expectation. held: something has changed
// that can't be sent yet, since it may be older than the edge's version.
func (c *comparison) reached(held bool) effects {
	switch {
	case c.state != expecting && c.state != streaming:
		return effects{}
	case held && !c.compared:
		c.state, c.expected = comparing, false
		return effects{how: resumeCompared, ask: &topicpb.InventoryRequest{Buckets: c.edgeUnknown || c.edge.count > fewEntries}}
	}
	return c.settle(effects{})
}

// unexpected is called when the edge holds something else than it was to expect.
func (c *comparison) unexpected(holds *topicpb.Digest) effects {
	c.expected, c.surprised, c.state = false, true, comparing
	var ok bool
	c.edge, ok = digestFrom(holds)
	c.edgeUnknown, c.newest = !ok, holds.GetNewest()
	return effects{how: resumeCompared}
}

// sums acts on the sums of an edge's buckets.
func (c *comparison) sums(ours map[kube.Key]*kube.Object, theirs []byte) effects {
	only := differing(bucketSums(ours), theirs)
	if len(only) == 0 {
		if c.edgeUnknown || digestOf(ours) == c.edge { // the difference has changed back in the meantime
			return c.settle(effects{})
		}
		return effects{ask: &topicpb.InventoryRequest{}}
	}
	c.only = bucketSet(only)
	return effects{ask: &topicpb.InventoryRequest{Only: only}}
}

// entries acts on the edge's objects, one by one. undecided names which keys it may yet be allowed
// to hold: those are not taken from it.
func (c *comparison) entries(ours map[kube.Key]*kube.Object, in []*topicpb.Entry, undecided func(kube.Key) bool) effects {
	c.theirs = make(map[kube.Key]heldEntry, len(in))
	for _, e := range in {
		version, err := strconv.ParseUint(e.GetResourceVersion(), 10, 64)
		if err != nil {
			version = 0
		}
		key := kube.Key{Namespace: e.GetNamespace(), Name: e.GetName()}
		c.theirs[key] = heldEntry{kube.SumOf(e.GetUid(), e.GetResourceVersion()), version}
	}
	if c.only != nil && !c.edgeUnknown && !c.restAgrees(ours) {
		c.only, c.theirs = nil, nil
		return effects{ask: &topicpb.InventoryRequest{}}
	}
	if doubts := c.doubts(ours, undecided); len(doubts) > 0 {
		c.state = confirming
		return effects{how: resumeConfirmed, confirm: doubts}
	}
	return c.confirmed(ours, undecided)
}

// confirmed ends a comparison: differences are sent. ours is no older than the edge's set.
func (c *comparison) confirmed(ours map[kube.Key]*kube.Object, undecided func(kube.Key) bool) effects {
	var keys []kube.Key
	for key, o := range ours {
		if c.only != nil && !c.only[bucketOf(key)] {
			continue
		}
		if e, ok := c.theirs[key]; !ok || e.sum != o.Sum {
			keys = append(keys, key)
		}
	}
	for key := range c.theirs {
		if _, ok := ours[key]; !ok && !undecided(key) {
			keys = append(keys, key)
		}
	}
	return c.settle(effects{send: keys})
}

// doubts returns the edge's objects that ours has in an older version or lacks, each with the
// version as of which it has to be confirmed. Where versions can't be compared, only a read is
// enough.
func (c *comparison) doubts(ours map[kube.Key]*kube.Object, undecided func(kube.Key) bool) map[kube.Key]uint64 {
	var out map[kube.Key]uint64
	for key, e := range c.theirs {
		o, ok := ours[key]
		if ok && (o.Sum == e.sum || versionOf(o) > e.version && e.version != 0) || !ok && undecided(key) {
			continue
		}
		if out == nil {
			out = map[kube.Key]uint64{}
		}
		if out[key] = e.version; e.version == 0 || ok && versionOf(o) == 0 {
			out[key] = kube.UnknownVersion
		}
	}
	return out
}

// restAgrees reports whether the edge holds, outside the buckets that it was asked about, the set
// that it should: its digest less the listed objects must be the digest of ours there. Otherwise
// two buckets differ whose short sums don't, or there was a change since.
func (c *comparison) restAgrees(ours map[kube.Key]*kube.Object) bool {
	rest, mine := c.edge, digest{}
	for _, e := range c.theirs {
		rest.count--
		rest.sum.Xor(e.sum)
	}
	for key, o := range ours {
		if !c.only[bucketOf(key)] {
			mine.count++
			mine.sum.Xor(o.Sum)
		}
	}
	return rest == mine
}

// settle makes the resource stream. An edge that was surprised is given another expectation first.
func (c *comparison) settle(e effects) effects {
	c.only, c.theirs = nil, nil
	if c.surprised {
		c.surprised, c.compared, c.state = false, true, expecting
		e.expect = true
		return e
	}
	c.state, c.compared = streaming, false
	c.edge = digest{}
	e.settled = true
	return e
}

func bucketSet(all []uint32) *[buckets]bool {
	var set [buckets]bool
	for _, b := range all {
		set[b%buckets] = true
	}
	return &set
}
