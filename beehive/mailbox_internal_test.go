package beehive

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/beehive/message"
)

var (
	stateTopic = message.NewTopic[int]("state", message.Update, message.Latest)
	upTopic    = message.NewTopic[int]("link", message.Insert, message.Latest)
	downTopic  = message.NewTopic[int]("link", message.Delete, message.Latest)
	everyTopic = message.NewTopic[int]("work", message.Update, message.Every)
)

func from(source message.Name, m message.Message) message.Message {
	m.Route.Source = source
	return m
}

func named(name string) message.Resource { return message.Resource{Name: name} }

// drain takes all that waits, as "source topic/resource=content".
func drain(b *mailbox) []string {
	var all []string
	for {
		m, ok := b.tryTake()
		if !ok {
			return all
		}
		all = append(all, fmt.Sprintf("%s %s/%s=%v", m.Route.Source, m.Key(), m.Route.Resource, m.Content))
	}
}

func TestMailbox_whatWaits(t *testing.T) {
	for name, c := range map[string]struct {
		bound    int
		put      []message.Message
		want     []string
		replaced uint64
	}{
		"every keeps all": {
			put:  []message.Message{from("a", everyTopic.New(named("x"), 1)), from("a", everyTopic.New(named("x"), 2))},
			want: []string{"a work.update/x=1", "a work.update/x=2"},
		},
		"latest replaces the same resource alone": {
			put: []message.Message{
				from("a", stateTopic.New(named("x"), 1)), from("a", stateTopic.New(named("x"), 2)), from("a", stateTopic.New(named("y"), 3)),
			},
			want: []string{"a state.update/x=2", "a state.update/y=3"}, replaced: 1,
		},
		"another sender's stays": {
			put:  []message.Message{from("a", stateTopic.New(named("x"), 1)), from("b", stateTopic.New(named("x"), 2))},
			want: []string{"a state.update/x=1", "b state.update/x=2"},
		},
		"another sender's message between is no reason to wait longer": {
			put: []message.Message{
				from("a", stateTopic.New(named("x"), 1)), from("b", everyTopic.New(named("x"), 2)), from("a", stateTopic.New(named("x"), 3)),
			},
			want: []string{"a state.update/x=3", "b work.update/x=2"}, replaced: 1,
		},
		"a newer one never overtakes its sender's other messages": {
			put: []message.Message{
				from("a", upTopic.New(named(""), 1)), from("a", downTopic.New(named(""), 1)), from("a", upTopic.New(named(""), 2)),
			},
			want: []string{"a link.insert/=1", "a link.delete/=1", "a link.insert/=2"},
		},
		"nor does the newest of many": {
			put: []message.Message{
				from("a", upTopic.New(named(""), 1)), from("a", downTopic.New(named(""), 1)),
				from("a", upTopic.New(named(""), 2)), from("a", upTopic.New(named(""), 3)), from("a", downTopic.New(named(""), 3)),
			},
			want: []string{"a link.insert/=1", "a link.delete/=1", "a link.insert/=3", "a link.delete/=3"}, replaced: 1,
		},
		"a replacement needs no room": {
			bound: 1,
			put:   []message.Message{from("a", stateTopic.New(named("x"), 1)), from("a", stateTopic.New(named("x"), 2))},
			want:  []string{"a state.update/x=2"}, replaced: 1,
		},
		"nothing replaces what must not be left out": {
			put: []message.Message{
				from("a", message.NewTopic[int]("state", message.Update, message.Every).New(named("x"), 1)), from("a", stateTopic.New(named("x"), 2)),
			},
			want: []string{"a state.update/x=1", "a state.update/x=2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.bound == 0 {
				c.bound = 16
			}
			b := newMailbox("m", c.bound)
			for _, m := range c.put {
				if err := b.put(t.Context(), m); err != nil {
					t.Fatal(err)
				}
			}
			if got := b.metrics().Replaced; got != c.replaced {
				t.Errorf("replaced %d, want %d", got, c.replaced)
			}
			if diff := cmp.Diff(c.want, drain(b)); diff != "" {
				t.Errorf("what waits (-want +got):\n%s", diff)
			}
			if len(b.lastOf) != 0 || b.depth != 0 || b.back != nil {
				t.Errorf("an empty mailbox remembers: %d senders, depth %d", len(b.lastOf), b.depth)
			}
		})
	}
}

func TestMailbox_heldBackInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMailbox("m", 2)
		for i := range 5 {
			go func() {
				if err := b.put(t.Context(), from("a", everyTopic.New(named("x"), i))); err != nil {
					t.Errorf("put %d: %v", i, err)
				}
			}()
			synctest.Wait() // one after another
		}
		if got := b.metrics(); got.Depth != 2 || got.Waiting != 3 || got.HeldBack != 3 {
			t.Errorf("metrics %+v, want 2 that wait and 3 held back", got)
		}
		want := []string{"a work.update/x=0", "a work.update/x=1", "a work.update/x=2", "a work.update/x=3", "a work.update/x=4"}
		if diff := cmp.Diff(want, drain(b)); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
	})
}

func TestMailbox_heldBackGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMailbox("m", 1)
		if err := b.put(t.Context(), from("a", everyTopic.New(named("x"), 0))); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("enough")
		var err error
		go func() { err = b.put(ctx, from("a", everyTopic.New(named("x"), 1))) }()
		synctest.Wait()
		cancel(cause)
		synctest.Wait()
		if !errors.Is(err, cause) {
			t.Errorf("put returned %v, want the cause of ctx", err)
		}
		if diff := cmp.Diff([]string{"a work.update/x=0"}, drain(b)); diff != "" {
			t.Errorf("what waits (-want +got):\n%s", diff)
		}
	})
}

func TestMailbox_closeTellsWhoIsHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMailbox("m", 1)
		var errs [2]error
		for i := range errs {
			go func() { errs[i] = b.put(t.Context(), from("a", everyTopic.New(named("x"), i))) }()
			synctest.Wait()
		}
		b.close()
		synctest.Wait()
		if errs[0] != nil || !errors.Is(errs[1], ErrNotRunning) {
			t.Errorf("put returned %v, want nil and ErrNotRunning", errs)
		}
		if err := b.put(t.Context(), from("a", everyTopic.New(named("x"), 3))); !errors.Is(err, ErrNotRunning) {
			t.Errorf("put after close returned %v, want ErrNotRunning", err)
		}
	})
}

// A receiver slower than its senders sees every kind of state again and again, and one of
// each waits at most.
func TestMailbox_noStarvation(t *testing.T) {
	b := newMailbox("m", 4)
	seen := map[message.Key]int{}
	for i := range 1000 {
		for _, topic := range []message.Topic[int]{stateTopic, upTopic, downTopic} {
			if err := b.put(t.Context(), from(message.Name(topic.Key().String()), topic.New(named("x"), i))); err != nil {
				t.Fatal(err)
			}
		}
		if m, ok := b.tryTake(); ok {
			seen[m.Key()]++
		}
		if b.depth > 3 {
			t.Fatalf("depth %d of three senders that each have one state", b.depth)
		}
	}
	for _, topic := range []message.Topic[int]{stateTopic, upTopic, downTopic} {
		if n := seen[topic.Key()]; n < 300 {
			t.Errorf("%s was received %d times of 1000", topic.Key(), n)
		}
	}
}

func TestBackoff_wait(t *testing.T) {
	b := OnFailure(Backoff{Min: 1e9, Max: 10e9}).backoff
	var got []string
	for n := range 6 {
		got = append(got, fmt.Sprint(b.wait(n+1, 0), " ", b.wait(n+1, 1)))
	}
	want := []string{"1s 800ms", "2s 1.6s", "4s 3.2s", "8s 6.4s", "10s 8s", "10s 8s"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("longest and shortest waits (-want +got):\n%s", diff)
	}
}
