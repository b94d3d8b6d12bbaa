package metamanager

import (
	"context"
	"fmt"
	"hash/fnv"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/event"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/outbox"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/reply"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/view"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

// writeEvent takes an event: into the ring, and where events are reported into the outbox too.
func (m *Manager) writeEvent(ctx context.Context, w Write) (Result, error) {
	code := http.StatusOK
	var shown object.Object
	err := m.do(ctx, func(b *batch) error {
		ref := w.Ref
		var next *corev1.Event
		switch w.Verb {
		case "create":
			e, err := event.Created(w)
			if err != nil {
				return err
			}
			ref.Namespace, ref.Name = e.Namespace, e.Name
			if b.view.Get(ref) != nil {
				return apierrors.NewAlreadyExists(view.Events.GroupResource(), ref.Name)
			}
			next, code = e, http.StatusCreated
		case "patch", "update":
			have := b.view.Get(ref)
			if have == nil {
				return reply.NotFound(ref) // a recorder then creates it
			}
			e, err := event.Next(w, have.Shown)
			if err != nil {
				return err
			}
			next = e
		case "delete":
			have := b.view.Get(ref)
			if have == nil {
				return reply.NotFound(ref)
			}
			m.dropEvent(b, ref)
			return nil
		default:
			return apierrors.NewMethodNotSupported(view.Events.GroupResource(), w.Verb)
		}
		o, err := m.stageEvent(b, ref, next, m.config.ReportEvents)
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

// stageEvent stages the current state of an event.
func (m *Manager) stageEvent(b *batch, ref object.Ref, e *corev1.Event, report bool) (object.Object, error) {
	e.ResourceVersion = ""
	o, err := object.FromObject(view.Events, e)
	if err != nil {
		return object.Object{}, apierrors.NewInternalError(err)
	}
	var body []byte
	if report {
		sent := *e // the cloud gives it a uid and a time of its own
		sent.UID, sent.CreationTimestamp = "", metav1.Time{}
		if body, err = object.Encode(&sent); err != nil {
			return object.Object{}, apierrors.NewInternalError(err)
		}
		if len(body) > m.config.Limits.OutboxBytes || len(body) > object.MaxRaw {
			return object.Object{}, apierrors.NewRequestEntityTooLargeError("the event is too large")
		}
	}
	size := -1
	if before := b.view.Get(ref); before != nil {
		size = len(before.Shown.Raw)
	}
	shown := b.view.Set(ref, view.NewHeld(o, nil)).Shown
	b.After(func() { m.events.Put(shown, size) })
	m.trimEvents(b, ref)
	if report {
		b.outbox.PutEvent(ref, entryOf(e, body))
	}
	return shown, nil
}

// entryOf returns the outbox entry of an event. A repeated event is marked by its verb: the cloud
// then updates its Event.
func entryOf(e *corev1.Event, body []byte) *outbox.Entry {
	verb := topicpb.Verb_PATCH
	if e.Count <= 1 && (e.Series == nil || e.Series.Count <= 1) {
		verb = topicpb.Verb_CREATE
	}
	return &outbox.Entry{Class: storepb.Class_EVENT, Verb: verb, Body: body, UID: e.InvolvedObject.UID, At: time.Now().UnixMilli(), Size: len(body)}
}

// trimEvents makes the oldest events give way to the newest.
func (m *Manager) trimEvents(b *batch, newest object.Ref) {
	count := m.events.Count()
	b.view.Sizes(view.Events, count.Add) // entries that this batch adds and removes
	m.events.Trim(count, func(ref object.Ref) int {
		have := b.view.Get(ref)
		if ref == newest || have == nil {
			return -1
		}
		m.dropEvent(b, ref)
		return len(have.Shown.Raw)
	})
}

// dropEvent stages that an event is shown no more.
func (m *Manager) dropEvent(b *batch, ref object.Ref) {
	size := len(b.view.Get(ref).Shown.Raw)
	b.view.Set(ref, nil)
	b.After(func() { m.events.Remove(ref, size) })
}

// reportDropped reports how many events had to make room in the outbox.
func (m *Manager) reportDropped(b *batch) error {
	if _, up := b.view.Link(); !up {
		return nil
	}
	n := b.outbox.TakeDropped()
	if n == 0 {
		return nil
	}
	e := m.ownEvent("EventsDropped", corev1.EventTypeWarning,
		fmt.Sprintf("The outbox of the node was full: the %d oldest events that waited for the cloud were dropped", n))
	_, err := m.stageEvent(b, event.Ref(e.Namespace, e.Name), e, m.config.ReportEvents)
	return err
}

// reportRefused records a permanently refused write as an event on this device. The cloud doesn't
// get it.
func (m *Manager) reportRefused(b *batch, ref object.Ref, e *outbox.Entry, st *metav1.Status) {
	if ref.Resource == view.Events && ref.Namespace == metav1.NamespaceDefault && e.UID == "" {
		return // an event of our own
	}
	what := ref.String()
	if e.Subresource != "" {
		what += " " + e.Subresource
	}
	next := m.ownEvent("WriteRefused", corev1.EventTypeWarning,
		fmt.Sprintf("kube-apiserver refused the %s of %s: %s", verbName(e.Verb), what, st.Message))
	sum := fnv.New64a() // one event for each thing that is refused again and again, with a count
	fmt.Fprint(sum, what, e.Verb, st.Reason)
	next.Name = fmt.Sprintf("%s.refused.%x", m.config.NodeName, sum.Sum64())
	m.countRepeats(b, next)
	if _, err := m.stageEvent(b, event.Ref(next.Namespace, next.Name), next, false); err != nil {
		m.counters.malformed.Add(1)
	}
}

// countRepeats makes of an event the repeat of the one of that name, where there is one.
func (m *Manager) countRepeats(b *batch, next *corev1.Event) {
	if before := decoded[*corev1.Event](b.view.Get(event.Ref(next.Namespace, next.Name))); before != nil {
		next.Count, next.FirstTimestamp = before.Count+1, before.FirstTimestamp
		next.UID, next.CreationTimestamp = before.UID, before.CreationTimestamp
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

func (m *Manager) ownEvent(reason, kind, text string) *corev1.Event {
	return event.Own(m.config.NodeName, m.view.NextVersion(), reason, kind, text)
}
