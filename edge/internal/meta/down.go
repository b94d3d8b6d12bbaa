package meta

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/meta/reply"
	"github.com/skerry-io/skerry/edge/internal/object"
	"github.com/skerry-io/skerry/edge/internal/store"
)

// inbox is what came over the link and waits for the core: states and results, in order. Its bound is the cloud's window of unacknowledged states and
// our own window of writes. When the disk is full it tries again; the cloud sends no more meanwhile.
type inbox struct {
	m    *Manager
	wake chan struct{}

	mu          sync.Mutex // guards what follows
	session     uint64     // counts the sessions that this process has seen
	sequence    uint64     // of the last state taken
	states      []stateMessage
	results     []*topicpb.WriteResult
	inventories []inventoryRequest
	pressing    bool // something waits that is not the result of an event
	surprises   surprises
}

// Nobody waits for the result of an event, and each commit is two syncs of flash: so results of events are gathered for a moment. What is lost with the
// process meanwhile is told again, for the event goes up again and is found there. Fewer than the window of events are gathered, so that the others are under way.
const (
	gatherFor  = 10 * time.Millisecond
	gatherMost = 16
)

// surprises are the resources of which the cloud expected something else than what is held. Each is told once in a session (told); until the cloud has compared, and expects
// something again, what it says is synced is not (open).
type surprises struct {
	open, told map[schema.GroupVersionResource]bool
}

func newSurprises() surprises {
	return surprises{open: map[schema.GroupVersionResource]bool{}, told: map[schema.GroupVersionResource]bool{}}
}

func (s surprises) clone() surprises { return surprises{maps.Clone(s.open), maps.Clone(s.told)} }

type stateMessage struct {
	message message.Message
	state   *topicpb.State
}

type inventoryRequest struct {
	message message.Message
	request *topicpb.InventoryRequest
}

func (in *inbox) put(do func()) {
	in.mu.Lock()
	do()
	in.mu.Unlock()
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

func (in *inbox) putState(msg message.Message, s *topicpb.State) {
	in.put(func() { in.states, in.pressing = append(in.states, stateMessage{msg, s}), true })
}

func (in *inbox) putResult(r *topicpb.WriteResult, event bool) {
	in.put(func() { in.results, in.pressing = append(in.results, r), in.pressing || !event })
}

// putInventory: an inventory must tell of every state that came before its request, so it goes the same way.
func (in *inbox) putInventory(msg message.Message, r *topicpb.InventoryRequest) {
	in.put(func() { in.inventories, in.pressing = append(in.inventories, inventoryRequest{msg, r}), true })
}

// reset forgets the states of a session that has ended: they were not acknowledged, so they come again. Results are kept: what they say stays true.
func (in *inbox) reset() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.session++
	in.sequence = 0
	in.states, in.inventories = nil, nil
	in.surprises = newSurprises()
}

func (in *inbox) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-in.wake:
		}
		in.gather(ctx)
		for delay := 250 * time.Millisecond; !in.work(ctx); delay = min(2*delay, 5*time.Second) {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(delay):
			}
		}
	}
}

// gather waits for more results of events, as long as nothing else waits.
func (in *inbox) gather(ctx context.Context) {
	if !in.patient() {
		return
	}
	timer := time.NewTimer(gatherFor)
	defer timer.Stop()
	for in.patient() {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-in.wake:
		}
	}
}

func (in *inbox) patient() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return !in.pressing && len(in.results) > 0 && len(in.results) < min(gatherMost, in.m.config.Limits.EventWindow/2)
}

// work hands all that waits to the core in one change. It returns false when that failed.
func (in *inbox) work(ctx context.Context) bool {
	in.mu.Lock()
	session, states, results, inventories, before := in.session, in.states, in.results, in.inventories, in.surprises
	in.pressing = false
	in.mu.Unlock()
	if len(states)+len(results)+len(inventories) == 0 {
		return true
	}
	log := klog.FromContext(ctx)
	in.m.at(PointReceived)
	var now surprises
	err := in.m.do(ctx, func(b *batch) error {
		in.mu.Lock()
		now = before.clone()
		stale := in.session != session // what an ended session sent must not come after what the new one was told that we have
		in.mu.Unlock()
		for _, s := range states {
			if !stale {
				in.m.applyState(b, s.state, now, log)
			}
		}
		for _, r := range results {
			in.m.applyResult(b, r, log)
		}
		if len(results) > 0 {
			if err := in.m.tellDropped(b); err != nil {
				log.Error(err, "It could not be told how many events were dropped")
			}
		}
		b.after(func() { // in the core, so that nothing of a newer session comes between
			for _, r := range results {
				in.m.finish(r.Id)
			}
		})
		return nil
	})
	if err != nil {
		return ctx.Err() != nil
	}
	in.m.at(PointSettled)
	in.mu.Lock()
	in.results = in.results[len(results):]
	if in.session != session {
		in.mu.Unlock()
		return true
	}
	in.states = in.states[len(states):]
	in.surprises = now
	in.inventories = in.inventories[len(inventories):]
	if n := len(states); n > 0 {
		for _, s := range states {
			if s.state.Sequence != in.sequence+1 {
				log.Error(nil, "States came out of turn", "have", in.sequence, "got", s.state.Sequence)
			}
			in.sequence = s.state.Sequence
		}
		ack := states[n-1].message.Answer(&topicpb.StateAck{Sequence: in.sequence})
		ack.Header.ParentID, ack.Header.Time = 0, time.Time{} // its sequence says what it acknowledges, and each byte of it counts
		in.m.sender.putAck(ack)
	}
	in.mu.Unlock()
	for resource := range now.told {
		if !before.told[resource] {
			in.m.sender.putInventory(in.m.surprised(resource, states[len(states)-1].message.Header.Session))
		}
	}
	for _, i := range inventories {
		in.m.mu.RLock()
		answer := in.m.tables[resourceOf(i.request.Resource)].inventory(i.request)
		in.m.mu.RUnlock()
		in.m.sender.putInventory(i.message.Answer(answer))
	}
	return true
}

// surprised tells what is held of a resource to a cloud that expected something else.
func (m *Manager) surprised(resource schema.GroupVersionResource, session uint64) message.Message {
	m.mu.RLock()
	defer m.mu.RUnlock()
	t := m.tables[resource]
	var d digest
	if t != nil {
		d = t.digest
	}
	inventory := t.inventory(&topicpb.InventoryRequest{Resource: wireResource(resource), Buckets: d.count > fewEntries})
	inventory.Holds = d.wire(resource)
	msg := topic.Inventory.New(message.Resource{}, inventory)
	msg.Header.Session = session
	return msg
}

// fewEntries is up to how many objects all entries are told at once, instead of the sums of their buckets first.
const fewEntries = 64

// maxSurprises is how many resources a cloud can be mistaken about in one session; beyond, it is believed.
const maxSurprises = 1024

// applyState stages what a State says, and notes in surprises what it expects and is not so.
func (m *Manager) applyState(b *batch, s *topicpb.State, found surprises, log klog.Logger) {
	m.applyRefusals(b, s, log) // first: what is taken back because of a refusal comes with it or after it
	for _, changes := range s.Changes {
		resource := resourceOf(changes.Resource)
		for _, c := range changes.Items {
			ref := object.Ref{Resource: resource, Namespace: c.Namespace, Name: c.Name}
			if c.Deleted {
				if resource == podsResource && m.keepsPods(b) {
					b.retain()[key{c.Namespace, c.Name}] = struct{}{}
					continue
				}
				b.forget(ref)
				continue
			}
			if err := m.applyObject(b, ref, c); err != nil {
				m.counters.malformed.Add(1)
				log.Error(err, "An object that the cloud sent can't be read; it is left out", "object", ref)
			}
		}
	}
	for _, e := range s.Expected {
		resource := resourceOf(e.GetResource())
		if !found.told[resource] && len(found.told) < maxSurprises && !b.digest(resource).is(e) {
			found.told[resource], found.open[resource] = true, true
			log.V(2).Info("The cloud expects something else", "resource", resource)
		} else {
			delete(found.open, resource)
		}
	}
	for _, id := range s.Synced {
		i := b.interestNow(id)
		if i == nil || found.concern(i) {
			continue
		}
		m.dropAccepted(b, i)
		if m.own(i) {
			b.release()
		}
		if i.synced && i.refused == nil {
			continue
		}
		i = b.stageInterest(id)
		i.synced, i.refused = true, nil
		b.saveInterest(i)
	}
}

// concern reports whether the cloud may be mistaken about what an interest has brought.
func (s surprises) concern(i *interest) bool {
	for resource := range s.open {
		if i.resource == resource || i.deps && object.Travels(resource) {
			return true
		}
	}
	return false
}

// applyRefusals stages what the cloud refuses.
func (m *Manager) applyRefusals(b *batch, s *topicpb.State, log klog.Logger) {
	for _, r := range s.Refused {
		i := b.stageInterest(r.Interest)
		if i == nil {
			continue
		}
		st := &metav1.Status{}
		if err := json.Unmarshal(r.Status, st); err != nil || st.Code < 400 {
			st = &reply.Status(403, metav1.StatusReasonForbidden, "kube-apiserver does not allow this node to have this", 0).ErrStatus
		}
		log.Info("The cloud refuses a set of objects", "resource", i.resource, "namespace", i.namespace, "fields", i.fields, "reason", st.Message)
		i.refused = st
		if i.synced && !m.own(i) {
			i.synced = false
			b.saveInterest(i)
		}
	}
}

// keepsPods reports whether pods stay although the cloud takes them back: it refuses the set that they are of.
func (m *Manager) keepsPods(b *batch) bool {
	for id, i := range m.interests {
		if staged, ok := b.interests[id]; ok {
			i = staged
		}
		if i != nil && i.refused != nil && i.synced && m.own(i) {
			return true
		}
	}
	return false
}

// retain is the pods that were taken back by a refusal and stay, the batch's own to change.
func (b *batch) retain() map[key]struct{} {
	if b.retained == nil {
		b.retained = maps.Clone(b.m.retained)
	}
	return b.retained
}

// release ends, once the set is granted and delivered again, what was retained and did not come again.
func (b *batch) release() {
	for k := range b.retain() {
		b.forget(object.Ref{Resource: podsResource, Namespace: k.namespace, Name: k.name})
	}
	clear(b.retained)
}

// applyObject stages the newest state of one object.
func (m *Manager) applyObject(b *batch, ref object.Ref, c *topicpb.Change) error {
	obj, err := object.DecodeRaw(c.Object)
	if err != nil {
		return err
	}
	o, err := object.FromDecoded(ref, obj, c.Object)
	if err != nil {
		return err
	}
	uid, version := cmp.Or(types.UID(c.Uid), o.UID), cmp.Or(c.ResourceVersion, o.CloudVersion)
	have := b.get(ref)
	if ref.Resource == podsResource {
		delete(b.retain(), key{ref.Namespace, ref.Name})
	}
	if have != nil && have.shown.UID == uid && have.shown.CloudVersion == version {
		return nil // came again: nothing that anybody could see
	}
	o.UID, o.CloudVersion = uid, version
	t := targetOf(ref)
	// What the cloud took is in what it sends now, or was undone there.
	b.remove(t, func(e *entry) bool {
		if !e.accepted {
			return false
		}
		return (e.uid != "" && e.uid != o.UID) || (e.verb == topicpb.Verb_PATCH && !older(o.CloudVersion, e.acceptedVersion))
	})
	h := lay(o, usesOf(obj), b.pending(t))
	b.set(ref, h)
	if have != nil && ref.Resource == nodesResource {
		if before, err := object.DecodeRaw(have.raw); err == nil && onlyHeartbeat(before, obj) {
			return nil // not worth a write: should we restart now, the cloud sends it once more
		}
	}
	b.saveObject(h)
	return nil
}

// forget stages that an object is no longer held. Writes that wait for it stay: the relay says what became of them.
func (b *batch) forget(ref object.Ref) { b.forgetHeld(ref, b.get(ref)) }

func (b *batch) forgetHeld(ref object.Ref, have *held) {
	b.remove(targetOf(ref), func(e *entry) bool { return e.accepted })
	if have == nil {
		return
	}
	b.set(ref, nil)
	b.saveDeletion(ref)
	if ref.Resource == podsResource {
		b.forgetAnswers(have.shown.UID)
	}
}

// relay shows an object anew after its writes have changed. Its record stays: that is what the cloud delivered.
func (b *batch) relay(ref object.Ref) {
	have := b.get(ref)
	if have == nil {
		return
	}
	h := lay(have.delivered(), have.uses, b.pending(targetOf(ref)))
	if h.hidden == have.hidden && bytes.Equal(h.shown.Raw, have.shown.Raw) {
		return
	}
	b.set(ref, h)
}

// dropAccepted drops what an earlier session's cloud took of an interest's objects: its whole set has come now, so it is as the cloud has it.
func (m *Manager) dropAccepted(b *batch, i *interest) {
	var refs []object.Ref
	for t := range m.outbox.queues {
		if (i.deps && object.Travels(t.resource)) || (!i.deps && t.resource == i.resource && (i.namespace == "" || i.namespace == t.namespace)) {
			refs = append(refs, t.ref())
		}
	}
	for _, ref := range refs {
		if b.remove(targetOf(ref), func(e *entry) bool { return e.accepted && e.acceptedEpoch < m.link.Epoch }) > 0 {
			b.relay(ref)
		}
	}
}

// applyResult stages the end of a write.
func (m *Manager) applyResult(b *batch, r *topicpb.WriteResult, log klog.Logger) {
	t, ok := m.outbox.targets[r.Id]
	if !ok {
		return // told twice: the link was renewed in between
	}
	var e *entry
	for _, o := range b.pending(t) {
		if o.id == r.Id && !o.accepted {
			e = o
		}
	}
	if e == nil {
		return
	}
	ref := t.ref()
	have := b.get(ref)
	if r.Accepted {
		m.counters.accepted.Add(1)
		b.after(func() { m.counters.lastAccepted.Store(time.Now().UnixMilli()) })
		keep := have != nil && e.laid() && (e.uid == "" || e.uid == have.shown.UID) &&
			(e.verb == topicpb.Verb_DELETE || (r.ResourceVersion != "" && older(have.shown.CloudVersion, r.ResourceVersion)))
		if keep {
			next := *e
			next.accepted, next.acceptedVersion, next.acceptedEpoch = true, r.ResourceVersion, m.link.Epoch
			b.replace(t, &next)
			return
		}
		b.remove(t, func(o *entry) bool { return o.id == r.Id })
		if have != nil && e.laid() {
			b.relay(ref)
		}
		return
	}
	st := &metav1.Status{}
	if err := json.Unmarshal(r.Status, st); err != nil {
		st = &metav1.Status{Message: "refused without a reason"}
	}
	m.counters.refused.Add(1)
	gone := have == nil && (st.Reason == metav1.StatusReasonNotFound || st.Reason == metav1.StatusReasonConflict)
	level := 0
	if gone { // that a status came too late for its pod is everyday
		level = 4
	}
	log.V(level).Info("The cloud refused a write for good", "object", ref, "verb", e.verb, "subresource", e.subresource, "reason", st.Reason, "why", st.Message)
	b.remove(t, func(o *entry) bool { return o.id == r.Id })
	if e.laid() {
		b.relay(ref)
	}
	if !gone {
		m.tellRefused(b, ref, e, st)
	}
}

// finish lets the next write of the target go. Called with the lock held, after the result is on the disk.
func (m *Manager) finish(id uint64) {
	t, known := m.outbox.targets[id]
	m.outbox.ended(id)
	if !known {
		return
	}
	if q := m.outbox.queues[t]; q != nil {
		m.outbox.offer(q)
	}
}

// load reads the store into the view.
func (m *Manager) load(ctx context.Context) error {
	var stored, entries, interests, dropped uint64
	boxes := map[target][]*entry{}
	bodies := map[uint64][]byte{} // of events, for the ring
	var objects []object.Object
	var ringed []ringRecord
	found := map[uint64]*interest{}
	answers := map[string]answerInfo{}
	log := klog.FromContext(ctx)
	if err := m.config.Store.View(func(tx *store.Tx) error {
		return m.readStore(tx, readInto{
			version: &stored, entries: &entries, interests: &interests, dropped: &dropped,
			boxes: boxes, bodies: bodies, objects: &objects, ringed: &ringed, found: found, answers: answers,
		})
	}); err != nil {
		return err
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	m.reset() // an earlier run of this process may have left what it had
	// Versions of the ring and the Lease are not on the disk: leave a gap that no run fills.
	m.base = max(stored+versionGap, uint64(max(time.Now().UnixMilli(), 0)))
	m.version = m.base
	m.next.Store(m.base)
	m.outbox.last, m.outbox.lastInterest, m.outbox.dropped = entries, interests, dropped
	m.answers = answers
	for t, es := range boxes {
		m.outbox.take(t, es)
	}
	deps := false
	for id, i := range found {
		m.interests[id] = i
		m.tablesFor(i)
		deps = deps || i.deps
	}
	for _, o := range objects {
		obj, err := object.DecodeRaw(o.Raw)
		if err != nil {
			log.Error(err, "An object in the store can't be read; it is left out", "object", o.Ref)
			continue
		}
		entries := boxes[targetOf(o.Ref)]
		h := lay(o, usesOf(obj), entries)
		for _, e := range entries {
			h.shown.Version = max(h.shown.Version, e.shownVersion)
		}
		m.countUses(nil, h)
		m.table(o.Resource).set(key{o.Namespace, o.Name}, h)
	}
	m.loadRing(ringed, bodies, log)

	var fresh *interest
	if !deps {
		m.outbox.lastInterest++
		fresh = &interest{id: m.outbox.lastInterest, deps: true, pinned: true, wake: make(chan struct{})}
		m.interests[fresh.id] = fresh
		m.tablesFor(fresh)
	}
	err := m.config.Store.Update(ctx, func(tx *store.Tx) error {
		if fresh != nil {
			if err := tx.PutInterest(fresh.id, fresh.record()); err != nil {
				return err
			}
			if err := tx.SetNumber(store.Interest, fresh.id); err != nil {
				return err
			}
		}
		return tx.SetNumber(store.Version, m.version)
	})
	if err != nil && fresh == nil {
		log.Error(err, "The store can't be written; the device goes on with what it has")
		return nil
	}
	return err
}

// versionGap is more than the ring and the Lease use up in years: at one change a second, 34 years.
const versionGap = 1 << 30

// readInto is where the store is read to.
type readInto struct {
	version, entries, interests, dropped *uint64

	boxes   map[target][]*entry
	bodies  map[uint64][]byte
	objects *[]object.Object
	ringed  *[]ringRecord
	found   map[uint64]*interest
	answers map[string]answerInfo
}
