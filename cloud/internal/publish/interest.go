package publish

import (
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/skerry-io/skerry/cloud/internal/kube"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

type standing int

const (
	undecided standing = iota // Kubernetes has not said yet whether the node may have it
	granted
	refused
)

// interest is one list+watch of an edge, or what its pods depend on.
type interest struct {
	id       uint64
	resource *resource // nil for dependencies
	*collection
	sel      *kube.Selection
	standing standing
	since    time.Time // of being undecided
	review   review
	gone     bool // the edge has dropped it
	entry    *entry
	single   *kube.Ref // watched alone

	counted bool // its objects are among those that its resource was compared with
	synced  bool
	waiting int // marks in the queue that must be passed before it is synced
}

func (i *interest) dependencies() bool { return i.sel == nil }

func same(i *interest, p *topicpb.Interest) bool {
	if i.dependencies() || p.GetDependencies() {
		return i.dependencies() && p.GetDependencies()
	}
	return i.gvr == resourceFrom(p.GetResource()) && i.sel.Source == source(p)
}

func source(p *topicpb.Interest) kube.Source {
	return kube.Source{Namespace: p.GetNamespace(), Labels: p.GetLabelSelector(), Fields: p.GetFieldSelector()}
}

// declare makes the set of interests that of m. The digests count for resources that this session hasn't compared yet.
func (s *session) declare(m *topicpb.Interests, digests []*topicpb.Digest) {
	for _, p := range digests {
		gvr := resourceFrom(p.GetResource())
		if gvr.Resource == "" {
			continue
		}
		if r := s.resource(gvr); r.phase == fresh {
			var ok bool
			r.edge, ok = digestFrom(p)
			r.edgeUnknown, r.newest = !ok, p.GetNewest()
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
	for id, p := range want {
		if _, ok := s.interests[id]; !ok {
			s.admit(id, p)
			admitted = true
		}
	}
	if admitted {
		time.AfterFunc(decideSoon, s.signal) // those that are still undecided then hold up nobody any more
	}
}

// admit takes a new interest and asks Kubernetes about it.
func (s *session) admit(id uint64, p *topicpb.Interest) {
	i := &interest{id: id, since: time.Now()}
	s.interests[id] = i
	if p.GetDependencies() {
		// Nothing to ask: claims and volumes that a pod of this node refers to are what the Node authorizer would allow, ConfigMaps and Secrets are
		// watched as the node.
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
		i.review.final = true // asking again changes nothing
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
		return // its standing follows what the watch says
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

func (s *session) refuse(i *interest, err error) {
	s.part.metrics.refused.Add(1)
	from := i.sel.Source
	s.log.Info("Interest refused", "resource", i.gvr.Resource, "namespace", from.Namespace, "fields", from.Fields, "labels", from.Labels, "err", err)
	s.frame.refuse(i.id, kube.StatusOf(err))
}
