package publish

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/dependency"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

func same(i *interest, p *topicpb.Interest) bool {
	if i.limited != nil {
		return proto.Equal(i.limited, p)
	}
	if i.dependencies() || p.GetDependencies() {
		return i.dependencies() && p.GetDependencies()
	}
	return i.gvr == resourceFrom(p.GetResource()) && i.sel.Source == source(p)
}

func source(p *topicpb.Interest) kube.Source {
	return kube.Source{Namespace: p.GetNamespace(), Labels: p.GetLabelSelector(), Fields: p.GetFieldSelector()}
}

// declare makes the set of interests that of m. The digests count for resources that this session
// hasn't compared yet.
func (s *session) declare(m *topicpb.Interests, digests []*topicpb.Digest) {
	s.unnamed = m.GetUnnamed()
	s.returned = s.returned || s.window.sequence == 0 && len(digests) > 0
	over, refusals := fits, s.limits
	if len(digests) > s.part.quotas.Digests {
		over, digests = tooManyDigests, nil
	}
	concerned := concerns(m)
	for _, p := range digests {
		gvr := resourceFrom(p.GetResource())
		if !concerned[gvr] {
			continue
		}
		if r := s.resource(gvr); r.state == unsynced {
			var ok bool
			r.edge, ok = digestFrom(p)
			r.edgeUnknown, r.newest, r.written = !ok, p.GetNewest(), p.GetWritten()
		}
	}
	want := make(map[uint64]*topicpb.Interest, len(m.GetInterests()))
	for _, p := range m.GetInterests() {
		want[p.GetId()] = p
	}
	for id, i := range s.interests {
		if p, ok := want[id]; !ok || !same(i, p) {
			i.gone = true
			delete(s.interests, id)
			s.drop(i)
		}
	}
	admitted := false
	for _, id := range slices.Sorted(maps.Keys(want)) {
		if _, ok := s.interests[id]; !ok {
			s.admit(id, want[id], over)
			admitted = true
		}
	}
	s.link.Charge(time.Duration(s.limits-refusals) * perRefusedInterest)
	s.admitLimited()
	if admitted {
		time.AfterFunc(decideSoon, s.signal) // those that are still undecided then hold up no others any more
	}
}

// concerns are the resources that a set of interests is about.
func concerns(m *topicpb.Interests) map[schema.GroupVersionResource]bool {
	out := map[schema.GroupVersionResource]bool{}
	for _, p := range m.GetInterests() {
		if p.GetDependencies() {
			out[kube.Pods] = true
			for _, gvr := range dependency.Resources() {
				out[gvr] = true
			}
		} else if gvr := resourceFrom(p.GetResource()); gvr.Resource != "" {
			out[gvr] = true
		}
	}
	return out
}

// admit takes a new interest, unless it is over a quota.
func (s *session) admit(id uint64, p *topicpb.Interest, over exceeded) {
	i := &interest{id: id, since: s.now()}
	s.interests[id] = i
	if !s.window.open() {
		s.unheard++
	}
	retry := int(recheckSoon / time.Second)
	if over == fits {
		over = s.part.quotas.admit(s.used, selectorBytes(p))
	}
	if over == fits && !p.GetDependencies() { // dependencies need no review
		var ok bool
		if ok, retry = s.part.rates.Take(s.node); !ok {
			over = tooFast
		}
	}
	if over != fits {
		i.standing, i.limited, i.review.final = refused, p, true
		s.refuseLimited(i, over, retry)
		return
	}
	i.bytes = int32(selectorBytes(p))
	s.used.interests++
	s.used.selectorBytes += int(i.bytes)
	s.serve(i, p)
}

// admitLimited tries interests again that were over a quota.
func (s *session) admitLimited() {
	for id, i := range s.interests {
		if i.limited == nil {
			continue
		}
		if s.part.quotas.admit(s.used, selectorBytes(i.limited)) != fits {
			continue
		}
		if ok, _ := s.part.rates.Take(s.node); !ok {
			return
		}
		next := &interest{id: id, since: s.now(), bytes: int32(selectorBytes(i.limited))}
		s.interests[id] = next
		s.used.interests++
		s.used.selectorBytes += int(next.bytes)
		s.serve(next, i.limited)
	}
}

// serve begins to serve an interest: Kubernetes is asked about it.
func (s *session) serve(i *interest, p *topicpb.Interest) {
	if p.GetDependencies() {
		// No review: claims and volumes that a pod of this node refers to are exactly those that
		// the Node authorizer would allow, ConfigMaps and Secrets are watched as the node.
		i.standing = granted
		if s.deps == nil {
			s.deps = newDependencies(s, i)
		} else {
			s.deps.interest = i
			s.deps.mark()
		}
		return
	}
	i.collection = s.part.feeds.collection(resourceFrom(p.GetResource()))
	var err error
	if i.gvr.Resource == "" || i.gvr.Version == "" {
		err = fmt.Errorf("the interest names no resource")
	} else {
		i.sel, err = s.part.feeds.selection(i.gvr, source(p))
	}
	if err != nil {
		i.sel = &kube.Selection{Source: source(p)}
		i.standing = refused
		i.review.final = true // another review would have the same result
		s.refuse(i, apierrors.NewBadRequest(err.Error()))
		return
	}
	i.resource = s.resource(i.gvr)
	i.resource.interests = append(i.resource.interests, i)
	if ref := (kube.Ref{Resource: i.gvr, Key: kube.Key{Namespace: i.sel.Namespace, Name: i.sel.Name}}); s.part.objects.Serves(ref) {
		if ref.Namespace == "" || ref.Name == "" {
			i.standing = refused
			i.review.final = true
			why := fmt.Errorf("cloudcore serves %s one by one only: select a namespace and metadata.name", i.gvr.Resource)
			s.refuse(i, apierrors.NewForbidden(i.gvr.GroupResource(), "", why))
			return
		}
		i.single = &ref
		s.hold(ref, i.resource)
		return // its standing follows the watch
	}
	s.ask(i)
}

// attach lets changes flow for a granted interest.
func (s *session) attach(i *interest) {
	if i.single != nil || i.entry != nil {
		return
	}
	i.entry = &entry{i.resource, i.sel}
	i.resource.openFeed().add(i.entry)
}

func (s *session) detach(i *interest) {
	i.review.cancel()
	if i.entry != nil {
		i.resource.feed.remove(i.entry)
		i.entry = nil
	}
	if i.single != nil {
		s.unhold(*i.single)
		i.single = nil
	}
}

// drop forgets an interest that the edge has no more.
func (s *session) drop(i *interest) {
	if i.limited == nil {
		s.used.interests--
		s.used.selectorBytes -= int(i.bytes)
	}
	if i.dependencies() && i.resource == nil {
		if s.deps != nil && s.deps.interest == i {
			s.deps.close()
			s.deps = nil
		}
		return
	}
	if i.resource == nil {
		return
	}
	i.resource.interests = without(i.resource.interests, i)
	if i.standing == granted {
		i.resource.unwant(i)
	}
	s.detach(i)
	i.resource.idle()
}

// ask has an interest reviewed when it is this node's turn.
func (s *session) ask(i *interest) {
	if i.gone {
		return
	}
	i.review.busy = true
	// A refusal is asked about again each time; a permission may be a minute old.
	remembered := i.standing != refused && i.review.refusedSince == never
	i.review.waiting = s.part.reviews.Do(string(s.node), func() {
		if !s.enter() {
			return
		}
		defer s.wg.Done()
		v := s.ruling(i, remembered)
		s.mu.Lock()
		s.inbox.verdicts = append(s.inbox.verdicts, ruled{i, v})
		s.mu.Unlock()
		s.signal()
	})
}

// ruling asks once: whether the node may have the interest, and whether cloudcore can follow it.
// An object's get is enough to hold it: of claims, volumes and the like the Node authorizer
// allows no list.
func (s *session) ruling(i *interest, remembered bool) verdict {
	ask := s.part.access.Review
	if remembered {
		ask = s.part.access.Allowed
	}
	at := kube.Attributes{Resource: i.gvr, Namespace: i.sel.Namespace, Name: i.sel.Name, Fields: i.sel.Fields, Labels: i.sel.Labels}
	verbs := []string{"list", "watch"}
	if i.sel.Name != "" {
		verbs = []string{"get"}
	}
	for _, verb := range verbs {
		at.Verb = verb
		d, err := ask(s.ctx, s.node, at)
		if err != nil {
			return verdict{}
		}
		if !d.Allowed {
			reason := d.Reason
			if reason == "" {
				reason = "it may not " + verb + " them"
			}
			why := apierrors.NewForbidden(i.gvr.GroupResource(), i.sel.Name, fmt.Errorf("node %s: %s", s.node, reason))
			return verdict{grace: graceRefused, refusal: why}
		}
	}
	refused, err := s.part.collections.Followable(s.ctx, i.gvr)
	if err != nil {
		return verdict{}
	}
	return verdict{allowed: refused == nil, grace: graceUnserved, refusal: refused}
}

// decide acts on an answer.
func (s *session) decide(i *interest, v verdict) {
	if i.gone {
		return
	}
	before := i.standing
	var again time.Duration
	i.standing, again = judge(s.now(), before, &i.review, v)
	i.review.busy, i.review.waiting = again > 0, nil
	if again > 0 {
		i.review.retry = time.AfterFunc(again, func() { s.askAgain(i) })
	}
	switch {
	case i.standing == before:
	case i.standing == granted:
		i.synced = false
		s.attach(i)
	case i.standing == refused:
		i.resource.unwant(i) // revoked, or held from an earlier session: objects of no other interest are deleted from the edge
		s.detach(i)
		s.refuse(i, v.refusal)
	}
}

// askAgain may be called by any goroutine.
func (s *session) askAgain(i *interest) {
	s.mu.Lock()
	if !s.over {
		s.inbox.due = append(s.inbox.due, i)
	}
	s.mu.Unlock()
	s.signal()
}

// recheck asks again about old decisions.
func (s *session) recheck() {
	s.admitLimited()
	now := s.now()
	for _, i := range s.interests {
		if i.dependencies() || i.single != nil || i.review.busy || i.review.final || i.resource == nil {
			continue
		}
		age := now.sub(i.review.checked)
		switch {
		case i.standing == granted && age >= recheckLater, i.standing == refused && age >= recheckSoon:
			s.ask(i)
		case i.standing == granted && !i.synced && i.resource.feed != nil && !i.resource.feed.store.HasSynced():
			// cloudcore could follow it and can't any more: report that instead of letting the edge
			// wait for no stated reason.
			if err := i.resource.feed.store.Failure(); err != nil && !i.resource.unfollowed {
				i.resource.unfollowed = true
				s.refuse(i, unfollowed(i.gvr.Resource, err))
			}
		}
	}
}

// unfollowed returns the reason why an interest that the node may have gets no objects.
func unfollowed(resource string, err error) error {
	text := fmt.Sprintf("cloudcore can't follow %s: %v", resource, err)
	if s, ok := errors.AsType[*apierrors.StatusError](err); ok {
		status := s.ErrStatus
		status.Message = text
		return &apierrors.StatusError{ErrStatus: status}
	}
	return apierrors.NewServiceUnavailable(text)
}
