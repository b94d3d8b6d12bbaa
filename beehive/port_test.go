package beehive_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/beehivetest"
	"github.com/skerry-io/skerry/beehive/message"
)

var (
	work   = message.NewTopic[int]("work", message.Update, message.Every)
	state  = message.NewTopic[string]("state", message.Update, message.Latest)
	double = message.NewTopic[int]("double", message.Query, message.Every)
)

// doubler answers each double with twice its content, and refuses negative ones.
func doubler(ctx context.Context, port *beehive.Port) error {
	for {
		m, err := port.Receive(ctx)
		if err != nil {
			return err
		}
		n, err := double.Content(m)
		if err != nil {
			return err
		}
		answer := any(2 * n)
		if n < 0 {
			answer = errNegative
		}
		if err := port.Reply(ctx, m, answer); err != nil {
			return err
		}
	}
}

var errNegative = errors.New("negative")

func TestSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := beehivetest.Run(t, []beehivetest.Peer{{Name: "a"}, {Name: "b"}})
		sent := work.New(message.Resource{Name: "x"}, 7)
		if err := b.Port("a").Send(t.Context(), "b", sent); err != nil {
			t.Fatal(err)
		}
		got := b.Receive("b")
		want := sent
		want.Route.Source = "a"
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("message (-want +got):\n%s", diff)
		}
		if err := b.Port("a").Send(t.Context(), "absent", sent); !errors.Is(err, beehive.ErrNoModule) {
			t.Errorf("Send to a module that isn't there returned %v", err)
		}
	})
}

func TestSend_orderedForEachPair(t *testing.T) {
	const n = 500
	var got [3][]int
	var all sync.WaitGroup
	all.Add(3 * n)
	b := beehivetest.Run(t, []beehivetest.Peer{
		{Name: "0"}, {Name: "1"}, {Name: "2"},
		{Name: "to", Mailbox: 4, Serve: func(ctx context.Context, port *beehive.Port) error {
			for {
				m, err := port.Receive(ctx)
				if err != nil {
					return err
				}
				from := m.Route.Source[0] - '0'
				got[from] = append(got[from], m.Content.(int))
				all.Done()
			}
		}},
	})
	var senders sync.WaitGroup
	for from := range 3 {
		port := b.Port(message.Name('0' + rune(from)))
		senders.Go(func() {
			for i := range n {
				if err := port.Send(t.Context(), "to", work.New(message.Resource{}, i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	senders.Wait()
	all.Wait()
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	for from, numbers := range got {
		for i, v := range numbers {
			if i != v {
				t.Fatalf("from %d: message %d is number %d", from, i, v)
			}
		}
		if len(numbers) != n {
			t.Errorf("from %d: %d messages, want %d", from, len(numbers), n)
		}
	}
}

func TestSend_aFullMailboxHoldsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := beehivetest.Run(t, []beehivetest.Peer{{Name: "a"}, {Name: "b", Mailbox: 1}})
		a := b.Port("a")
		if err := a.Send(t.Context(), "b", work.New(message.Resource{}, 1)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if err := a.Send(ctx, "b", work.New(message.Resource{}, 2)); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("Send to a full mailbox returned %v after %v, want the end of ctx after 1s", err, time.Since(start))
		}
		sent := make(chan error)
		go func() { sent <- a.Send(t.Context(), "b", work.New(message.Resource{}, 3)) }()
		synctest.Wait()
		if got := b.Receive("b").Content; got != 1 {
			t.Errorf("received %v, want 1", got)
		}
		if err := <-sent; err != nil {
			t.Error(err)
		}
		if got := b.Receive("b").Content; got != 3 {
			t.Errorf("received %v, want 3", got)
		}
	})
}

func TestSendSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := beehivetest.Run(t, []beehivetest.Peer{{Name: "a"}, {Name: "doubler", Serve: doubler}})
		request := double.New(message.Resource{Name: "x"}, 21)
		answer, err := b.Port("a").SendSync(t.Context(), "doubler", request)
		if err != nil {
			t.Fatal(err)
		}
		if answer.Content != 42 || answer.Header.ParentID != request.Header.ID || answer.Route.Source != "doubler" {
			t.Errorf("answer %+v, want 42, tied to %d", answer, request.Header.ID)
		}
		if _, err := b.Port("a").SendSync(t.Context(), "doubler", double.New(message.Resource{}, -1)); !errors.Is(err, errNegative) {
			t.Errorf("a refusal returned %v, want it as the error", err)
		}
		if got := b.Runner.Metrics(); got.Pending != 0 || got.LateAnswers != 0 {
			t.Errorf("metrics %+v, want nothing pending and nothing late", got)
		}
	})
}

func TestSendSync_lateAnswerIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := beehivetest.Run(t, []beehivetest.Peer{{Name: "a"}, {Name: "slow"}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := b.Port("a").SendSync(ctx, "slow", double.New(message.Resource{}, 1)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("SendSync returned %v, want the end of ctx", err)
		}
		if err := b.Port("slow").Reply(t.Context(), b.Receive("slow"), 2); err != nil {
			t.Errorf("a late Reply returned %v, want nil", err)
		}
		if got := b.Runner.Metrics().LateAnswers; got != 1 {
			t.Errorf("late answers %d, want 1", got)
		}
		// The late answer reaches no mailbox and no later request.
		go func() {
			m, _ := b.Port("slow").Receive(t.Context())
			_ = b.Port("slow").Reply(t.Context(), m, 4)
		}()
		answer, err := b.Port("a").SendSync(t.Context(), "slow", double.New(message.Resource{}, 2))
		if err != nil || answer.Content != 4 {
			t.Errorf("the next request got %v, %v; want 4", answer.Content, err)
		}
	})
}

func TestSendSync_passedOnWithItsID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := beehivetest.Run(t, []beehivetest.Peer{
			{Name: "a"},
			{Name: "middle", Serve: func(ctx context.Context, port *beehive.Port) error {
				m, err := port.Receive(ctx)
				if err != nil {
					return err
				}
				answer, err := port.SendSync(ctx, "doubler", m) // the very message: its ID is waited for already
				if err != nil {
					return err
				}
				if err := port.Reply(ctx, m, answer.Content); err != nil {
					return err
				}
				<-ctx.Done()
				return nil
			}},
			{Name: "doubler", Serve: doubler},
		})
		answer, err := b.Port("a").SendSync(t.Context(), "middle", double.New(message.Resource{}, 4))
		if err != nil || answer.Content != 8 {
			t.Errorf("got %v, %v; want 8", answer.Content, err)
		}
	})
}

// A hub passes a request on to the other end of its link and hands the answer over; it may answer
// only requests sent to it.
func TestAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := beehivetest.Run(t, []beehivetest.Peer{{Name: "a"}, {Name: "hub"}, {Name: "other"}})
		type result struct {
			m   message.Message
			err error
		}
		got := make(chan result, 1)
		go func() {
			m, err := b.Port("a").SendSync(t.Context(), "hub", double.New(message.Resource{}, 3))
			got <- result{m, err}
		}()
		request := b.Receive("hub")
		answer := request.Answer(6)
		if err := b.Port("other").Answer(answer); !errors.Is(err, beehive.ErrLate) {
			t.Errorf("Answer of a module that was not asked returned %v, want ErrLate", err)
		}
		if err := b.Port("hub").Answer(answer); err != nil {
			t.Errorf("Answer returned %v", err)
		}
		if r := <-got; r.err != nil || r.m.Content != 6 {
			t.Errorf("SendSync returned %v, %v; want 6", r.m.Content, r.err)
		}
		if err := b.Port("hub").Answer(answer); !errors.Is(err, beehive.ErrLate) {
			t.Errorf("a second Answer returned %v, want ErrLate", err)
		}
		if got := b.Runner.Metrics().LateAnswers; got != 2 {
			t.Errorf("late answers %d, want 2", got)
		}
	})
}

// A message from a link has the other process's ID: its answer goes to the hub's mailbox, also
// where a request of ours has the same ID.
func TestReply_toAMessageFromTheLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := beehivetest.Run(t, []beehivetest.Peer{{Name: "hub"}, {Name: "b"}})
		ours := double.New(message.Resource{}, 1)
		local := make(chan message.Message, 1)
		go func() {
			m, err := b.Port("hub").SendSync(t.Context(), "b", ours)
			if err != nil {
				t.Error(err)
			}
			local <- m
		}()
		request := b.Receive("b")
		theirs := double.New(message.Resource{}, 5)
		theirs.Header.ID, theirs.Header.Sync = ours.Header.ID, true
		if err := b.Port("hub").Send(t.Context(), "b", theirs); err != nil {
			t.Fatal(err)
		}
		if err := b.Port("b").Reply(t.Context(), b.Receive("b"), 10); err != nil {
			t.Fatal(err)
		}
		if m := b.Receive("hub"); m.Content != 10 || m.Header.ParentID != theirs.Header.ID {
			t.Errorf("the hub received %+v, want 10 for %d", m, theirs.Header.ID)
		}
		if err := b.Port("b").Reply(t.Context(), request, 2); err != nil {
			t.Fatal(err)
		}
		if m := <-local; m.Content != 2 {
			t.Errorf("SendSync returned %v, want 2", m.Content)
		}
		if err := b.Port("b").Reply(t.Context(), work.New(message.Resource{}, 1), 2); err == nil {
			t.Error("Reply to a message that asks for no answer returned nil")
		}
	})
}

func TestSendToGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := beehivetest.Run(t, []beehivetest.Peer{
			{Name: "a", Groups: []message.Group{"link"}}, {Name: "b", Groups: []message.Group{"link", "other"}},
			{Name: "c", Groups: []message.Group{"link"}}, {Name: "d"},
		})
		if err := b.Port("a").SendToGroup(t.Context(), "link", state.New(message.Resource{}, "up")); err != nil {
			t.Fatal(err)
		}
		for _, name := range []message.Name{"b", "c"} {
			if m := b.Receive(name); m.Content != "up" || m.Route.Group != "link" || m.Route.Source != "a" {
				t.Errorf("%s received %+v", name, m)
			}
		}
		for _, m := range b.Runner.Metrics().Modules {
			if m.Depth != 0 {
				t.Errorf("%d messages wait for %s, want none", m.Depth, m.Name)
			}
		}
		if err := b.Port("a").SendToGroup(t.Context(), "absent", state.New(message.Resource{}, "up")); !errors.Is(err, beehive.ErrNoGroup) {
			t.Errorf("SendToGroup to an empty group returned %v", err)
		}
	})
}

func BenchmarkSend(b *testing.B) {
	received := make(chan struct{})
	bench := beehivetest.Run(b, []beehivetest.Peer{{Name: "a"}, {Name: "to", Serve: func(ctx context.Context, port *beehive.Port) error {
		for range b.N {
			if _, err := port.Receive(ctx); err != nil {
				return err
			}
		}
		close(received)
		<-ctx.Done()
		return nil
	}}})
	port := bench.Port("a")
	m := work.New(message.Resource{Namespace: "default", Name: "x"}, 1)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if err := port.Send(b.Context(), "to", m); err != nil {
			b.Fatal(err)
		}
	}
	<-received
}

func BenchmarkSendSync(b *testing.B) {
	bench := beehivetest.Run(b, []beehivetest.Peer{{Name: "a"}, {Name: "doubler", Serve: doubler}})
	port := bench.Port("a")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := port.SendSync(b.Context(), "doubler", double.New(message.Resource{}, 2)); err != nil {
			b.Fatal(err)
		}
	}
}
