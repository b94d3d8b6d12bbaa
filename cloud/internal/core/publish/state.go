package publish

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/quota"
	"github.com/skerry-io/skerry/common/dependency"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// Publisher is the part of the hub that serves interests.
type Publisher struct {
	collections Collections
	objects     ObjectWatches
	access      Access
	reviews     *kube.LimitedQueue
	quotas      Quotas
	rates       *quota.Rates
	feeds       *feeds
	metrics     *Metrics
}

// session is one edge's way down.
type session struct {
	part *Publisher
	link cloudhub.Session
	node types.NodeName
	loop *cloudhub.Loop // signalled when the inbox, or a store, has something new
	wg   sync.WaitGroup
	due  atomic.Bool // it is time for a recheck

	mu    sync.Mutex
	inbox inbox
	over  bool // by Stop: no more input

	// Set by Start, then only read.
	ctx   context.Context
	log   klog.Logger
	timer *time.Timer // of the next recheck

	// Owned by the loop.
	interests map[uint64]*interest
	used      usage
	limited   limitedAnswer
	limits    int // interests that were refused as they were over a quota
	resources []*resourceSync
	held      map[kube.Ref]*heldObject
	deps      *dependencies // nil without that interest
	frame     frame
	window    window
	unnamed   bool // the edge takes an object's name from the object
	returned  bool // the edge holds objects of an earlier session
	unheard   int  // interests that came since the window has been shut
	began     time.Time
	sent      atomic.Int64 // Unix nanoseconds: the last State. Others read it
	site      string       // whose projection it gets; "" without one
}

// inbox has the messages of other goroutines to the loop.
type inbox struct {
	queue       []item // to be sent, in order
	head        int
	pressing    bool               // the queue has an item that must not wait
	until       time.Time          // when the queue goes otherwise: its items have waited for others then
	alarm       *time.Timer        // of a signal that comes by itself; nil without one
	waking      time.Time          // when it comes
	interests   *topicpb.Interests // the newest
	digests     []*topicpb.Digest  // of the first
	inventories []*topicpb.Inventory
	verdicts    []ruled
	due         []*interest // to be reviewed again
	caughtUp    []*confirmation
	acked       uint64
}

// ruled is an answer about an interest.
type ruled struct {
	interest *interest
	verdict  verdict
}

// item is one place in the queue: a key, or a mark or an expectation, each of which is reached when
// all before it was sent.
type item struct {
	resource *resourceSync
	key      kube.Key
	mark     *interest
	expect   bool
}

// pressing is the wait of items that go at once.
const pressing time.Duration = 0

// put appends an item to the queue that waits there for others for at most that time. The session's
// lock is held.
func (q *inbox) put(it item, wait time.Duration) {
	q.queue = append(q.queue, it)
	if wait == pressing {
		q.pressing = true
		return
	}
	if at := time.Now().Add(wait); q.until.IsZero() || at.Before(q.until) {
		q.until = at
	}
}

// patience is how long all that is in the queue still waits for more. The session's lock is held.
func (q *inbox) patience() time.Duration {
	if q.pressing || q.until.IsZero() {
		return 0
	}
	return time.Until(q.until)
}

// resourceSync is one collection, as one session has it.
type resourceSync struct {
	*collection
	comparison
	session   *session
	feed      *feed // nil until something needs it, and for those that are watched one by one
	interests []*interest

	blockedPods map[kube.Key]bool // pods that wait for their dependencies
	heldMarkers []*interest       // sync markers that were reached, and wait for blocked pods
	confirming  *confirmation     // nil where it isn't waiting
	heldExpect  bool              // an expectation was reached, and waits for blocked pods
	heldBack    bool              // an object in dirty may be older than the edge's version: it waits for a comparison
	waiting     bool              // the loop is woken when the store has synced
	unfollowed  bool              // the edge was notified that cloudcore can't follow it

	// Under the session's lock.
	flows bool                  // comparison.state.flows(), for the goroutines that note changes
	noted bool                  // changes are noted
	dirty map[kube.Key]struct{} // changed and not sent
}

// confirmation is that of a resource in the state confirming.
type confirmation struct {
	collection bool // the copy of the collection
	objects    map[kube.Key]*heldObject
	wanted     bool // that the objects decide which these depend on are confirmed
	cancel     func()
}

// interest is one list+watch of an edge, or the dependencies of its pods.
type interest struct {
	id       uint64
	resource *resourceSync // nil for dependencies
	*collection
	sel     *kube.Selection
	since   moment // of being undecided
	review  review
	limited *topicpb.Interest // the declared one, while there is no room for it
	entry   *entry
	single  *kube.Ref // watched alone

	bytes    int32 // of its selectors
	waiting  int32 // marks in the queue that must be passed before it is synced
	standing standing
	gone     bool // the edge has dropped it
	counted  bool // its objects are among those that its resource was compared with
	synced   bool
}

// heldObject is an object that is watched alone for this session.
type heldObject struct {
	state    atomic.Pointer[kube.ObjectState]
	caughtUp atomic.Bool // since the last CatchUp
	users    int         // owned by the loop
	watch    kube.ObjectWatch
}

// dependencies are the objects that the pods of this node refer to, and their references in turn: a
// claim to its volume, a volume to its Secrets. All of them are sent before the pod that needs
// them.
type dependencies struct {
	session  *session
	interest *interest
	podSync  *resourceSync
	entry    *entry
	scanned  bool
	pods     map[kube.Key][]kube.Ref
	refs     map[kube.Ref]*need
	pending  map[kube.Ref]struct{} // not known yet whether these exist
}

type need struct {
	users    int
	children []kube.Ref
	sent     bool
}

func (h *heldObject) load() kube.ObjectState {
	if s := h.state.Load(); s != nil {
		return *s
	}
	return kube.ObjectState{}
}

func (i *interest) dependencies() bool { return i.sel == nil && i.limited == nil }

func (d *dependencies) concerns(gvr schema.GroupVersionResource) bool {
	return dependency.Always(gvr) || gvr == dependency.ServiceAccounts || gvr == dependency.ResourceClaims || gvr == dependency.Attachments
}

// kinds are the resources of dependencies that concern this session: those that few pods need are
// there when one does, or when the edge holds some of it.
func (d *dependencies) kinds(do func(*resourceSync)) {
	for _, gvr := range dependency.Resources() {
		if dependency.Always(gvr) {
			do(d.session.resource(gvr))
		} else if r := d.session.resourceOf(gvr); r != nil {
			do(r)
		}
	}
}

func (d *dependencies) has(ref kube.Ref) bool {
	_, ok := d.refs[ref]
	return ok
}

// now is the moment, which is never the zero value.
func (s *session) now() moment { return moment(time.Since(s.began)) + 1 }

func (s *session) signal() { s.loop.Signal() }

func (s *session) push(it item) {
	s.mu.Lock()
	s.inbox.put(it, pressing)
	s.mu.Unlock()
}

// enter reports whether the session still lives, and keeps Stop waiting for s.wg.Done if it does.
func (s *session) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.ctx.Err() != nil {
		return false
	}
	s.wg.Add(1)
	return true
}

func (s *session) resource(gvr schema.GroupVersionResource) *resourceSync {
	r := s.resourceOf(gvr)
	if r == nil {
		r = &resourceSync{session: s, collection: s.part.feeds.collection(gvr)}
		s.resources = append(s.resources, r)
	}
	return r
}

// resourceOf returns nil for a resource that is new to the session. A session has some 14
// resources; a map of them would take more memory than all that it leads to.
func (s *session) resourceOf(gvr schema.GroupVersionResource) *resourceSync {
	for _, r := range s.resources {
		if r.gvr == gvr {
			return r
		}
	}
	return nil
}

// siteFor is the site whose projection of a collection the session gets; "" where all
// edges get the same.
func (s *session) siteFor(gvr schema.GroupVersionResource) string {
	if s.part.feeds.sites == nil || !projected(gvr) {
		return ""
	}
	s.site = s.siteOf()
	return s.site
}

// siteOf returns the session's current site. Until that is known it has a site of its own, which is
// empty.
func (s *session) siteOf() string {
	if site, known := s.part.feeds.sites.SiteOf(string(s.node)); known {
		return site
	}
	if s.site != "" {
		return s.site
	}
	return "unknown/" + string(s.node)
}

func (s *session) refuse(i *interest, err error) {
	s.part.metrics.refused.Add(1)
	from := i.sel.Source
	s.log.Info("Refused an interest", "resource", i.gvr.Resource, "namespace", from.Namespace, "fields", from.Fields, "labels", from.Labels, "err", err)
	s.frame.refuse(i.id, kube.StatusOf(err))
}

// refuseLimited refuses interests over a quota. Those are as many as a device likes: the metric
// counts them, and thousands share one answer.
func (s *session) refuseLimited(i *interest, over exceeded, retry int) {
	s.part.metrics.refused.Add(1)
	s.part.metrics.limited[over].Add(1)
	s.limits++
	if last := &s.limited; last.status == nil || last.over != over || last.retry != retry {
		*last = limitedAnswer{over, retry, kube.StatusOf(over.refusal(retry))}
	}
	s.frame.refuse(i.id, s.limited.status)
}

// limitedAnswer is the last answer about a quota.
type limitedAnswer struct {
	over   exceeded
	retry  int
	status []byte
}

// outOfTurn ends the session: its edge doesn't keep to the contract.
func outOfTurn(format string, args ...any) error {
	return &link.CloseError{Code: link.CloseProtocol, Reason: fmt.Sprintf(format, args...)}
}
