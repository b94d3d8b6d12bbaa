package outbox_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager/outbox"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

func ref(resource, name string) object.Ref {
	return object.Ref{Resource: schema.GroupVersionResource{Version: "v1", Resource: resource}, Namespace: "default", Name: name}
}

func state() *outbox.Entry {
	return &outbox.Entry{Class: storepb.Class_POD_STATUS, Body: []byte("{}"), Size: 2}
}

func event() *outbox.Entry {
	return &outbox.Entry{Class: storepb.Class_EVENT, Body: []byte("event"), Size: 5}
}

// sent returns the entries that are sent now.
func sent(o *outbox.Outbox) (all []string) {
	o.Send(func(r object.Ref, e *outbox.Entry) { all = append(all, fmt.Sprint(r.Name, e.ID)) })
	return all
}

// One write of an object is under way, those of others don't wait for it, and events leave
// room in the window.
func TestOutbox_sendsInOrder(t *testing.T) {
	o := outbox.New(outbox.Limits{Events: 9, EventBytes: 999, Window: 3, EventWindow: 1})
	b := o.Stage()
	for _, name := range []string{"a", "a", "b"} {
		b.Add(ref("pods", name), state())
	}
	for _, name := range []string{"x", "y"} {
		b.PutEvent(ref("events", name), event())
	}
	o.Show(b)
	want := [][]string{{"a1", "b3", "x4"}, nil, {"a2"}, {"y5"}}
	got := [][]string{sent(o), sent(o)}
	for _, done := range []struct {
		ref object.Ref
		id  uint64
	}{{ref("pods", "a"), 1}, {ref("events", "x"), 4}} {
		b := o.Stage()
		b.Remove(done.ref, func(e *outbox.Entry) bool { return e.ID == done.id })
		o.Show(b)
		o.Finish(done.id)
		got = append(got, sent(o))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what went (-want +got):\n%s", diff)
	}
	o.Restart() // a new link: all writes in flight are sent again
	if diff := cmp.Diff([]string{"a2", "b3", "y5"}, sent(o)); diff != "" {
		t.Errorf("what went again (-want +got):\n%s", diff)
	}
}

// A batch whose transaction failed is dropped, and the outbox is as before.
func TestBatch_leavesNoTraceWhenDropped(t *testing.T) {
	o := outbox.New(outbox.Limits{Events: 2, EventBytes: 999, Window: 9, EventWindow: 9})
	b := o.Stage()
	b.Add(ref("pods", "a"), state())
	b.PutEvent(ref("events", "x"), event())
	o.Show(b)
	before := o.Status()

	b = o.Stage()
	b.Remove(ref("pods", "a"), func(*outbox.Entry) bool { return true })
	for _, name := range []string{"y", "z", "w"} {
		b.PutEvent(ref("events", name), event())
	}
	if len(b.Pending(ref("pods", "a"))) != 0 || !b.Writes() {
		t.Error("the batch does not see its own change")
	}
	if diff := cmp.Diff(before, o.Status()); diff != "" {
		t.Errorf("the outbox has changed (-want +got):\n%s", diff)
	}
	if len(o.Entries(ref("pods", "a"))) != 1 || o.Dropped() != 0 {
		t.Errorf("%d entries of the pod, %d events dropped", len(o.Entries(ref("pods", "a"))), o.Dropped())
	}
}

// Where there are too many events the oldest go and are counted, but for one that is under way.
func TestBatch_oldestEventsGiveWay(t *testing.T) {
	o := outbox.New(outbox.Limits{Events: 3, EventBytes: 999, Window: 9, EventWindow: 1})
	for _, name := range []string{"a", "b", "c", "d"} {
		b := o.Stage()
		b.PutEvent(ref("events", name), event())
		o.Show(b)
		sent(o)
	}
	var left []string
	for _, name := range []string{"a", "b", "c", "d"} {
		if len(o.Entries(ref("events", name))) > 0 {
			left = append(left, name)
		}
	}
	if diff := cmp.Diff([]string{"a", "c", "d"}, left); diff != "" || o.Dropped() != 1 {
		t.Errorf("%d dropped, left (-want +got):\n%s", o.Dropped(), diff)
	}
	b := o.Stage()
	if n := b.TakeDropped(); n != 0 {
		t.Errorf("%d are reported while the outbox is full", n)
	}
	for _, name := range []string{"a", "c"} {
		b.Remove(ref("events", name), func(*outbox.Entry) bool { return true })
	}
	if n := b.TakeDropped(); n != 1 || o.Status().Reported != 0 {
		t.Errorf("%d are reported, want 1, and %d were", n, o.Status().Reported)
	}
	o.Show(b)
	if s := o.Status(); s.Reported != 1 || s.Dropped != 0 {
		t.Errorf("%d were reported, want 1; %d are not", s.Reported, s.Dropped)
	}
}
