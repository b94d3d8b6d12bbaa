package meta

import (
	"context"
	"fmt"
	"hash/fnv"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/meta/reply"
	"github.com/skerry-io/skerry/edge/internal/object"
	"github.com/skerry-io/skerry/edge/internal/store"
	"github.com/skerry-io/skerry/edge/internal/store/storepb"
)

// writeEvent takes an event: into the ring, and where events are reported into the outbox too.
func (m *Manager) writeEvent(ctx context.Context, w Write) (Result, error) {
	code := http.StatusOK
	var shown object.Object
	err := m.do(ctx, func(b *batch) error {
		ref := w.Ref
		var event *corev1.Event
		switch w.Verb {
		case "create":
			e, err := eventOf(w)
			if err != nil {
				return err
			}
			ref.Namespace, ref.Name = e.Namespace, e.Name
			if b.get(ref) != nil {
				return apierrors.NewAlreadyExists(eventsResource.GroupResource(), ref.Name)
			}
			event, code = e, http.StatusCreated
		case "patch", "update":
			have := b.get(ref)
			if have == nil {
				return reply.NotFound(ref) // a recorder then creates it
			}
			e, err := nextEvent(w, have.shown)
			if err != nil {
				return err
			}
			event = e
		case "delete":
			have := b.get(ref)
			if have == nil {
				return reply.NotFound(ref)
			}
			m.unring(b, ref)
			return nil
		default:
			return apierrors.NewMethodNotSupported(eventsResource.GroupResource(), w.Verb)
		}
		o, err := m.stageEvent(b, ref, event, m.config.ReportEvents)
		shown = o
		return err
	})
	if err != nil {
		return Result{}, reply.From(err)
	}
	if w.Verb == "delete" {
		return Result{Code: code, Status: reply.Success()}, nil
	}
	return Result{Code: code, Object: &shown}, nil
}

func eventOf(w Write) (*corev1.Event, error) {
	obj, err := object.DecodeRaw(w.Body)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	e, ok := obj.(*corev1.Event)
	if !ok {
		return nil, apierrors.NewBadRequest("the object is no Event")
	}
	if e.Namespace == "" {
		e.Namespace = w.Ref.Namespace
	}
	if e.Name == "" && e.GenerateName != "" {
		e.Name = e.GenerateName + string(uuid.NewUUID())[:8]
	}
	if e.Name == "" || e.Namespace == "" || (w.Ref.Namespace != "" && e.Namespace != w.Ref.Namespace) {
		return nil, apierrors.NewBadRequest("an event needs a name, and the namespace that it is sent to")
	}
	e.UID, e.CreationTimestamp = uuid.NewUUID(), metav1.Now()
	return e, nil
}

func nextEvent(w Write, have object.Object) (*corev1.Event, error) {
	now, err := object.Decode(have)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	var next runtime.Object
	if w.Verb == "patch" {
		next, err = object.Patch(now, w.PatchType, w.Body)
	} else {
		next, err = object.DecodeRaw(w.Body)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	e, ok := next.(*corev1.Event)
	if !ok || e.Name != have.Name || e.Namespace != have.Namespace {
		return nil, apierrors.NewBadRequest("the event does not fit its name")
	}
	e.UID = have.UID
	return e, nil
}

// stageEvent stages an event as it is now.
func (m *Manager) stageEvent(b *batch, ref object.Ref, event *corev1.Event, report bool) (object.Object, error) {
	event.ResourceVersion = ""
	o, err := object.FromObject(eventsResource, event)
	if err != nil {
		return object.Object{}, apierrors.NewInternalError(err)
	}
	var body []byte
	if report {
		sent := *event // the cloud gives it a uid and a time of its own
		sent.UID, sent.CreationTimestamp = "", metav1.Time{}
		if body, err = object.Encode(&sent); err != nil {
			return object.Object{}, apierrors.NewInternalError(err)
		}
		if len(body) > m.config.Limits.OutboxBytes || len(body) > object.MaxRaw {
			return object.Object{}, apierrors.NewRequestEntityTooLargeError("the event is too large")
		}
	}
	k := key{ref.Namespace, ref.Name}
	before := b.get(ref)
	h := b.set(ref, &held{shown: o, raw: o.Raw})
	b.after(func() {
		r := m.ring
		if before == nil {
			r.order = append(r.order, k)
		} else {
			r.bytes -= len(before.shown.Raw)
		}
		r.bytes += len(h.shown.Raw)
		r.mark(k, &storepb.Event{Version: h.shown.Version, Raw: h.shown.Raw})
	})
	m.trimRing(b, k)
	if report {
		m.queueEvent(b, ref, event, body)
	}
	return h.shown, nil
}

// trimRing makes the oldest events give way to the newest.
func (m *Manager) trimRing(b *batch, newest key) {
	r, limits := m.ring, m.config.Limits
	count, bytes := len(r.order), r.bytes
	for k, h := range b.objects[eventsResource] { // what this batch adds and takes
		before := m.tables[eventsResource].objects[k]
		switch {
		case h != nil && before == nil:
			count++
			bytes += len(h.shown.Raw)
		case h != nil:
			bytes += len(h.shown.Raw) - len(before.shown.Raw)
		case before != nil:
			count--
			bytes -= len(before.shown.Raw)
		}
	}
	for _, k := range r.order {
		if count <= limits.RingEvents && bytes <= limits.RingBytes {
			return
		}
		ref := object.Ref{Resource: eventsResource, Namespace: k.namespace, Name: k.name}
		h := b.get(ref)
		if k == newest || h == nil {
			continue
		}
		count--
		bytes -= len(h.shown.Raw)
		m.unring(b, ref)
	}
}

// unring stages that an event leaves the ring.
func (m *Manager) unring(b *batch, ref object.Ref) {
	h := b.get(ref)
	b.set(ref, nil)
	k := key{ref.Namespace, ref.Name}
	b.after(func() {
		if i := slices.Index(m.ring.order, k); i >= 0 {
			m.ring.order = slices.Delete(m.ring.order, i, i+1)
			m.ring.bytes -= len(h.shown.Raw)
		}
		m.ring.mark(k, nil)
	})
}

// queueEvent stages an event for the cloud. One that still waits takes the repeat in; one that may have reached the cloud already says so by its
// verb: the cloud then updates what it has.
func (m *Manager) queueEvent(b *batch, ref object.Ref, event *corev1.Event, body []byte) {
	t := targetOf(ref)
	e := &entry{
		class: storepb.Class_EVENT, verb: topicpb.Verb_PATCH, body: body, uid: event.InvolvedObject.UID, at: time.Now().UnixMilli(), size: len(body),
	}
	if event.Count <= 1 && (event.Series == nil || event.Series.Count <= 1) {
		e.verb = topicpb.Verb_CREATE
	}
	if entries := b.pending(t); len(entries) > 0 {
		last := entries[len(entries)-1]
		if _, under := m.outbox.inflight[last.id]; !under {
			merged := *last
			merged.body, merged.size, merged.at, merged.uid = e.body, e.size, e.at, e.uid
			if last.sent {
				merged.verb = topicpb.Verb_PATCH
			}
			b.merge(t, last, &merged)
			m.trimEvents(b, merged.id)
			return
		}
		e.verb = topicpb.Verb_PATCH
	}
	b.add(t, e)
	m.trimEvents(b, e.id)
}

// trimEvents drops the oldest events of the outbox when there are too many, and counts them. One that is under way stays: it may be there already.
func (m *Manager) trimEvents(b *batch, newest uint64) {
	limits, o := m.config.Limits, m.outbox
	dropped := uint64(0)
	for _, id := range o.eventOrder {
		if b.events.entries <= limits.OutboxEvents && b.events.bytes <= limits.OutboxBytes {
			break
		}
		t, ok := o.targets[id]
		if _, under := o.inflight[id]; !ok || under || id == newest {
			continue
		}
		dropped += uint64(b.remove(t, func(e *entry) bool { return e.id == id }))
	}
	if dropped == 0 {
		return
	}
	b.dropped += dropped
	total := o.dropped + b.dropped
	b.save(func(tx *store.Tx) error { return tx.SetNumber(store.Dropped, total) })
	b.after(func() { o.dropped = total; m.counters.dropped.Add(dropped) })
}

// tellDropped reports how many events had to make room. It waits until half of the room is free: what is told must not push out another, and in a storm
// that lasts it is told now and then, not each time.
func (m *Manager) tellDropped(b *batch) error {
	n, limits := m.outbox.dropped, m.config.Limits
	if n == 0 || !m.linked || b.events.entries > limits.OutboxEvents/2 || b.events.bytes > limits.OutboxBytes/2 {
		return nil
	}
	event := m.ownEvent("EventsDropped", corev1.EventTypeWarning,
		fmt.Sprintf("The outbox of the node was full: the %d oldest events that waited for the cloud were dropped", n))
	ref := object.Ref{Resource: eventsResource, Namespace: event.Namespace, Name: event.Name}
	b.save(func(tx *store.Tx) error { return tx.SetNumber(store.Dropped, 0) })
	b.after(func() { m.outbox.dropped = 0 })
	_, err := m.stageEvent(b, ref, event, m.config.ReportEvents)
	return err
}

// tellRefused notes in the ring that a write was refused for good. Not in the cloud: it knows.
func (m *Manager) tellRefused(b *batch, ref object.Ref, e *entry, st *metav1.Status) {
	if ref.Resource == eventsResource && ref.Namespace == metav1.NamespaceDefault && e.uid == "" {
		return // an event of our own
	}
	what := ref.String()
	if e.subresource != "" {
		what += " " + e.subresource
	}
	event := m.ownEvent("WriteRefused", corev1.EventTypeWarning,
		fmt.Sprintf("kube-apiserver refused the %s of %s: %s", verbName(e.verb), what, st.Message))
	sum := fnv.New64a() // one event for each thing that is refused again and again, with a count
	fmt.Fprint(sum, what, e.verb, st.Reason)
	event.Name = fmt.Sprintf("%s.refused.%x", m.config.NodeName, sum.Sum64())
	own := object.Ref{Resource: eventsResource, Namespace: event.Namespace, Name: event.Name}
	if have := b.get(own); have != nil {
		if obj, err := object.DecodeRaw(have.shown.Raw); err == nil {
			if before, ok := obj.(*corev1.Event); ok {
				event.Count, event.FirstTimestamp = before.Count+1, before.FirstTimestamp
				event.UID, event.CreationTimestamp = before.UID, before.CreationTimestamp
			}
		}
	}
	if _, err := m.stageEvent(b, own, event, false); err != nil {
		m.counters.malformed.Add(1)
	}
}

func verbName(v topicpb.Verb) string {
	switch v {
	case topicpb.Verb_CREATE:
		return "create"
	case topicpb.Verb_DELETE:
		return "delete"
	}
	return "patch"
}

// ownEvent is an event about this node.
func (m *Manager) ownEvent(reason, kind, text string) *corev1.Event {
	now := metav1.Now()
	return &corev1.Event{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, // where events about what has no namespace go, as with client-go's recorder
			Name:      fmt.Sprintf("%s.%x", m.config.NodeName, m.next.Add(1)), UID: uuid.NewUUID(), CreationTimestamp: now,
		},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: m.config.NodeName, APIVersion: "v1"},
		Reason:         reason, Type: kind, Message: text, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source:              corev1.EventSource{Component: "metamanager", Host: m.config.NodeName},
		ReportingController: "metamanager", ReportingInstance: m.config.NodeName,
	}
}
