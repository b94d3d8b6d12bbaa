package message_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/skerry-io/skerry/beehive/message"
)

type lease struct{ Holder string }

var (
	leaseUpdate = message.NewTopic[lease]("lease", message.Update, message.Latest)
	leaseQuery  = message.NewTopic[string]("lease", message.Query, message.Every)
	errRefused  = errors.New("refused")
)

func TestTopic_New(t *testing.T) {
	before := time.Now()
	m := leaseUpdate.New(message.Resource{Namespace: "kube-node-lease", Name: "edge1"}, lease{"edge1"})
	want := message.Message{
		Header: message.Header{Delivery: message.Latest},
		Route: message.Route{
			Kind: "lease", Operation: message.Update, Resource: message.Resource{Namespace: "kube-node-lease", Name: "edge1"},
		},
		Content: lease{"edge1"},
	}
	if diff := cmp.Diff(want, m, cmpopts.IgnoreFields(message.Header{}, "ID", "Time")); diff != "" {
		t.Errorf("message (-want +got):\n%s", diff)
	}
	if m.Header.ID == 0 || m.Header.Time.Before(before) {
		t.Errorf("header %+v, want an ID and the time", m.Header)
	}
	if m.Key() != leaseUpdate.Key() || m.Key().String() != "lease.update" {
		t.Errorf("key %s, want lease.update", m.Key())
	}
}

func TestTopic_Content(t *testing.T) {
	for name, c := range map[string]struct {
		content any
		want    lease
		err     error
	}{
		"its own type":     {content: lease{"a"}, want: lease{"a"}},
		"another type":     {content: "a", err: message.ErrWrongContent},
		"a pointer to it":  {content: &lease{"a"}, err: message.ErrWrongContent},
		"nothing":          {content: nil, err: message.ErrWrongContent},
		"a refusal":        {content: errRefused, err: errRefused},
		"a deeper refusal": {content: fmt.Errorf("asking: %w", errRefused), err: errRefused},
	} {
		t.Run(name, func(t *testing.T) {
			m := leaseUpdate.New(message.Resource{}, lease{})
			m.Content = c.content
			got, err := leaseUpdate.Content(m)
			if got != c.want || !errors.Is(err, c.err) {
				t.Errorf("got %v, %v; want %v, %v", got, err, c.want, c.err)
			}
		})
	}
}

func TestMessage_Answer(t *testing.T) {
	request := leaseUpdate.New(message.Resource{Name: "edge1"}, lease{"edge1"})
	request.Header.Sync, request.Header.Awaited, request.Header.Session = true, true, 7
	request.Route.Source, request.Route.Group = "metamanager", "link"
	answer := request.Answer(lease{"edge2"})
	want := message.Message{
		Header:  message.Header{ParentID: request.Header.ID, Session: 7},
		Route:   message.Route{Kind: "lease", Operation: message.Response, Resource: message.Resource{Name: "edge1"}},
		Content: lease{"edge2"},
	}
	if diff := cmp.Diff(want, answer, cmpopts.IgnoreFields(message.Header{}, "ID", "Time")); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	if answer.Header.ID == request.Header.ID || answer.Err() != nil {
		t.Errorf("answer %+v, want an ID of its own and no error", answer)
	}
	if err := request.Answer(errRefused).Err(); !errors.Is(err, errRefused) {
		t.Errorf("a refusal's Err is %v", err)
	}
}

func TestNextID(t *testing.T) {
	const n = 1000
	var ids [4][n]message.ID
	var all sync.WaitGroup
	for g := range ids {
		all.Go(func() {
			for i := range n {
				ids[g][i] = message.NextID()
			}
		})
	}
	all.Wait()
	seen := map[message.ID]bool{0: true}
	for _, some := range ids {
		for _, id := range some {
			if seen[id] {
				t.Fatalf("ID %d twice, or 0", id)
			}
			seen[id] = true
		}
	}
}

func TestStrings(t *testing.T) {
	for want, got := range map[string]fmt.Stringer{
		"every": message.Every, "latest": message.Latest, "Delivery(9)": message.Delivery(9),
		"name": message.Resource{Name: "name"}, "space/name": message.Resource{Namespace: "space", Name: "name"},
	} {
		if got.String() != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestMux(t *testing.T) {
	mux := message.NewMux()
	var got []string
	message.Handle(mux, leaseUpdate, func(_ context.Context, m message.Message, content lease) error {
		got = append(got, m.Route.Resource.Name+" "+content.Holder)
		return nil
	})
	message.Handle(mux, leaseQuery, func(context.Context, message.Message, string) error { return errRefused })

	if diff := cmp.Diff([]message.Key{leaseQuery.Key(), leaseUpdate.Key()}, mux.Keys()); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	unknown := message.NewTopic[int]("lease", message.Delete, message.Every)
	wrong := leaseUpdate.New(message.Resource{}, lease{})
	wrong.Content = 1
	for name, c := range map[string]struct {
		m   message.Message
		err error
	}{
		"handled":         {leaseUpdate.New(message.Resource{Name: "edge1"}, lease{"edge2"}), nil},
		"handler's error": {leaseQuery.New(message.Resource{}, "x"), errRefused},
		"unknown topic":   {unknown.New(message.Resource{}, 1), message.ErrNoHandler},
		"wrong content":   {wrong, message.ErrWrongContent},
		"a refusal":       {wrong.Answer(errRefused), message.ErrNoHandler}, // a Response is a topic of its own
	} {
		if err := mux.Dispatch(t.Context(), c.m); !errors.Is(err, c.err) {
			t.Errorf("%s: Dispatch returned %v, want %v", name, err, c.err)
		}
	}
	if diff := cmp.Diff([]string{"edge1 edge2"}, got); diff != "" {
		t.Errorf("handled (-want +got):\n%s", diff)
	}

	defer func() {
		if got := fmt.Sprint(recover()); got != "message: two handlers for lease.update" {
			t.Errorf("a second handler: %s, want a panic", got)
		}
	}()
	message.Handle(mux, leaseUpdate, func(context.Context, message.Message, lease) error { return nil })
}
