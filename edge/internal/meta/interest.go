package meta

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/meta/reply"
	"github.com/skerry-io/skerry/edge/internal/object"
	"github.com/skerry-io/skerry/edge/internal/store"
	"github.com/skerry-io/skerry/edge/internal/store/storepb"
)

// interest is one set of objects that this device wants. Guarded by Manager.mu; only the core changes synced and refused.
type interest struct {
	id        uint64
	resource  schema.GroupVersionResource
	namespace string
	labels    string
	fields    string
	deps      bool // what pods refer to
	pinned    bool
	synced    bool           // its whole set was delivered at least once
	refused   *metav1.Status // kube-apiserver does not let this node have it

	watchers int
	idle     time.Duration // linked time since the last use
	wake     chan struct{} // closed and renewed when synced or refused changes
}

func (i *interest) wakeAll() {
	close(i.wake)
	i.wake = make(chan struct{})
}

// selection is the set as a selection.
func (i *interest) selection() (object.Selection, error) {
	s := object.Selection{Resource: i.resource, Namespace: i.namespace}
	var err error
	if s.Labels, err = labels.Parse(i.labels); err != nil {
		return s, err
	}
	s.Fields, err = fields.ParseSelector(i.fields)
	return s, err
}

// covers reports whether the selection asks for nothing that is not in the set.
func (i *interest) covers(s object.Selection) bool {
	return !i.deps && i.resource == s.Resource && (i.namespace == "" || i.namespace == s.Namespace) &&
		(i.labels == "" || i.labels == s.LabelString()) && (i.fields == "" || i.fields == s.FieldString())
}

func (i *interest) record() *storepb.Interest {
	return &storepb.Interest{
		Group: i.resource.Group, Version: i.resource.Version, Resource: i.resource.Resource, Namespace: i.namespace,
		LabelSelector: i.labels, FieldSelector: i.fields, Dependencies: i.deps, Synced: i.synced, Pinned: i.pinned,
	}
}

func interestOf(id uint64, r *storepb.Interest) *interest {
	return &interest{
		id: id, resource: schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Resource}, namespace: r.Namespace,
		labels: r.LabelSelector, fields: r.FieldSelector, deps: r.Dependencies, synced: r.Synced, pinned: r.Pinned, wake: make(chan struct{}),
	}
}

func (i *interest) wire() *topicpb.Interest {
	if i.deps {
		return &topicpb.Interest{Id: i.id, Dependencies: true}
	}
	return &topicpb.Interest{
		Id: i.id, Resource: wireResource(i.resource), Namespace: i.namespace, LabelSelector: i.labels, FieldSelector: i.fields,
	}
}

// interestNow is an interest as this batch leaves it, to look at; nil where there is none.
func (b *batch) interestNow(id uint64) *interest {
	if i, ok := b.interests[id]; ok {
		return i
	}
	return b.m.interests[id]
}

// stageInterest stages a change of an interest: the copy that it returns is the batch's to change.
func (b *batch) stageInterest(id uint64) *interest {
	if i, ok := b.interests[id]; ok {
		return i
	}
	have := b.m.interests[id]
	if have == nil {
		return nil
	}
	b.m.mu.RLock()
	i := *have
	b.m.mu.RUnlock()
	b.interests[id] = &i
	return &i
}

func (b *batch) saveInterest(i *interest) {
	record, id := i.record(), i.id
	b.save(func(tx *store.Tx) error { return tx.PutInterest(id, record) })
}

// showInterest takes over a staged interest, nil for one that is dropped. Called with the lock held.
func (m *Manager) showInterest(id uint64, staged *interest) {
	have := m.interests[id]
	switch {
	case staged == nil:
		if have != nil {
			delete(m.interests, id)
			have.wakeAll()
			m.sender.wantInterests()
		}
	case have == nil:
		m.interests[id] = staged
		m.tablesFor(staged)
		m.sender.wantInterests()
	default: // uses and waits have gone on meanwhile: only what the core decides is taken over
		have.synced, have.refused, have.pinned = staged.synced, staged.refused, staged.pinned
		have.wakeAll()
	}
}

func (m *Manager) tablesFor(i *interest) {
	if !i.deps {
		m.table(i.resource)
		return
	}
	for _, r := range object.Travelling() {
		m.table(r)
	}
}

// own reports whether the set is the kubelet's own pods. A cloud that refuses it, by mistake or by a change of rights, does not end pods that run: as
// with a kubelet whose watch is forbidden, they go on as they were.
func (m *Manager) own(i *interest) bool {
	return i.resource == podsResource && i.namespace == "" && i.labels == "" && i.fields == m.ownPods().FieldString()
}

// valid reports whether what is held of the set may be served.
func (m *Manager) valid(i *interest) bool { return i.synced && (i.refused == nil || m.own(i)) }

// answerable reports whether the view has all that the selection asks for. Called with the lock held.
func (m *Manager) answerable(s object.Selection) bool {
	if s.Resource == eventsResource {
		return true
	}
	for _, i := range m.interests {
		switch {
		case !i.covers(s) && (!i.deps || !m.travelsHere(s)):
		case m.valid(i), i.refused == nil && m.holdsNamed(s):
			return true
		}
	}
	return false
}

// holdsNamed reports whether the selection names one object, and that one is held: it is current,
// also while others of its set are missing. Called with the lock held.
func (m *Manager) holdsNamed(s object.Selection) bool {
	name, t := s.Name(), m.tables[s.Resource]
	return name != "" && t != nil && t.objects[key{s.Namespace, name}].visible() != nil
}

// covering finds the interest that covers the selection, synced or not; the dependencies last.
func (m *Manager) covering(s object.Selection) *interest {
	var best *interest
	for _, i := range m.interests {
		if i.covers(s) && (best == nil || m.better(i, best)) {
			best = i
		}
	}
	if best != nil {
		return best
	}
	for _, i := range m.interests {
		if i.deps && m.travelsHere(s) {
			return i
		}
	}
	return nil
}

// better: one that can answer before one that can't, then the older.
func (m *Manager) better(a, b *interest) bool {
	if x, y := m.valid(a), m.valid(b); x != y {
		return x
	}
	return a.id < b.id
}

// Covered reports whether the selection can be answered here and now, link or no link.
func (m *Manager) Covered(s object.Selection) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.running && m.answerable(s)
}

// want makes an interest of a selection that no interest covers yet.
func (m *Manager) want(ctx context.Context, s object.Selection, pinned bool) error {
	return m.do(ctx, func(b *batch) error {
		if have := m.covering(s); have != nil {
			if pinned && !have.pinned && !have.deps {
				i := b.stageInterest(have.id)
				i.pinned = true
				b.saveInterest(i)
			}
			return nil
		}
		for _, i := range b.interests { // one that the same batch makes
			if i != nil && i.covers(s) {
				return nil
			}
		}
		if len(m.interests)+len(b.interests) >= m.config.Limits.Interests {
			return reply.TooMany("this node holds as many sets of objects as it may")
		}
		b.interest++
		i := &interest{
			id: b.interest, resource: s.Resource, namespace: s.Namespace, labels: s.LabelString(), fields: s.FieldString(), pinned: pinned,
			wake: make(chan struct{}),
		}
		b.interests[i.id] = i
		b.saveInterest(i)
		return nil
	})
}

// pins reports whether a set is to be kept even if nobody watches it: what the kubelet watches of the whole node it needs after a reboot without a
// link, also when it did not run for a while before.
func (m *Manager) pins(s object.Selection, caller Caller) bool {
	name := s.Name()
	return caller.Kubelet && (name == "" || name == m.config.NodeName)
}

// hold makes sure that the selection is wanted and waits until it can be answered. use, where it can, is called with the lock held: for writing, so
// that it may register what it takes from the view.
func (m *Manager) hold(ctx context.Context, s object.Selection, caller Caller, use func(*interest) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, m.config.Limits.SyncWait, errNotSynced)
	defer cancel()
	for {
		m.mu.Lock()
		if !m.running {
			m.mu.Unlock()
			return reply.From(reply.ErrStopped)
		}
		if m.answerable(s) {
			i := m.covering(s)
			if i != nil {
				i.idle = 0
			}
			err := use(i)
			m.mu.Unlock()
			return err
		}
		i := m.covering(s)
		if i != nil && i.refused != nil {
			refused := *i.refused
			i.idle = 0
			m.mu.Unlock()
			return &apierrors.StatusError{ErrStatus: refused}
		}
		var wake chan struct{}
		if i != nil {
			wake, i.idle = i.wake, 0
		}
		linked := m.linked
		m.mu.Unlock()
		if i == nil {
			if err := m.want(ctx, s, m.pins(s, caller)); err != nil {
				return m.notYet(s, linked, err)
			}
			continue
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return m.notYet(s, linked, context.Cause(ctx))
		}
	}
}

var errNotSynced = errors.New("the set has not arrived yet")

func (m *Manager) notYet(s object.Selection, linked bool, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errNotSynced) {
		if !linked {
			return reply.Offline("this node has never held " + s.String())
		}
		return reply.Unavailable("this node does not hold "+s.String()+" yet", 1)
	}
	return reply.From(err)
}

// dropIdle drops what nobody has watched or read for a while. Time without a link does not count: what an island holds it keeps.
func (m *Manager) dropIdle(ctx context.Context, passed time.Duration) {
	var idle []uint64
	m.mu.Lock()
	if m.linked {
		for _, i := range m.interests {
			if i.deps || i.pinned || i.watchers > 0 {
				i.idle = 0
				continue
			}
			if i.idle += passed; i.idle > m.config.Limits.InterestIdle {
				idle = append(idle, i.id)
			}
		}
	}
	m.mu.Unlock()
	if len(idle) == 0 {
		return
	}
	slices.Sort(idle)
	if err := m.do(ctx, func(b *batch) error { m.drop(b, idle); return nil }); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Sets that nobody uses could not be dropped; they are tried again")
	}
}

// drop stages the end of interests, and of the objects of resources of which none is left. What else no interest matches the cloud takes back.
func (m *Manager) drop(b *batch, ids []uint64) {
	m.mu.RLock() // uses go on beside the core
	defer m.mu.RUnlock()
	touched := map[schema.GroupVersionResource]bool{}
	for _, id := range ids {
		i := m.interests[id]
		if i == nil || i.watchers > 0 || i.idle <= m.config.Limits.InterestIdle {
			continue // used again meanwhile
		}
		b.interests[id] = nil
		b.save(func(tx *store.Tx) error { return tx.DeleteInterest(id) })
		touched[i.resource] = true
	}
	for _, i := range m.interests {
		if staged, ok := b.interests[i.id]; !ok || staged != nil {
			delete(touched, i.resource)
		}
	}
	for r := range touched {
		if object.Travels(r) || m.tables[r] == nil {
			continue
		}
		for _, k := range m.tables[r].keys() {
			b.forgetHeld(object.Ref{Resource: r, Namespace: k.namespace, Name: k.name}, m.tables[r].objects[k])
		}
	}
}

// interestsMessage tells the cloud what this device wants and has. Called with the lock held for reading.
func (m *Manager) interestsMessage() *topicpb.Interests {
	msg := &topicpb.Interests{}
	for _, id := range slices.Sorted(maps.Keys(m.interests)) {
		msg.Interests = append(msg.Interests, m.interests[id].wire())
	}
	resources := slices.SortedFunc(maps.Keys(m.tables), func(a, b schema.GroupVersionResource) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Resource, b.Resource))
	})
	for _, r := range resources {
		if t := m.tables[r]; !t.local && t.digest.count > 0 {
			msg.Digests = append(msg.Digests, &topicpb.Digest{Resource: wireResource(r), Count: t.digest.count, Sum: slices.Clone(t.digest.sum[:]), Newest: t.newest()})
		}
	}
	return msg
}
