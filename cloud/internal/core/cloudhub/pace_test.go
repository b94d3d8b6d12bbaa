package cloudhub_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// A node that is charged more than a second each second is read no quicker than it pays, over all
// its sessions; its heartbeats are answered in the meantime, for an hour, and no other link waits.
// Its session can be ended at any moment.
func TestHub_ChargedNodesAreReadAsTheyPay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handled := map[string]*atomic.Int64{"flood": new(atomic.Int64), "honest": new(atomic.Int64)}
		b := newBench(t, cloudhub.Config{}, part{attach: func(s cloudhub.Session, mux *message.Mux) {
			message.Handle(mux, topic.EventWrite, func(context.Context, message.Message, *topicpb.Write) error {
				handled[string(s.Node())].Add(1)
				if s.Node() == "flood" {
					s.Charge(time.Second)
				}
				return nil
			})
		}})
		write := func(e *edge, n int) {
			for i := range n {
				e.send(topic.EventWrite.New(message.Resource{}, &topicpb.Write{Id: uint64(i + 1)}))
			}
		}
		flood, honest := b.open("flood", 1), b.open("honest", 1)
		write(flood, 40)
		write(honest, 40)
		synctest.Wait()
		if honest, flood := handled["honest"].Load(), handled["flood"].Load(); honest != 40 || flood > 12 {
			t.Fatalf("at once: %d of the honest node, %d of the other; want all, and the credit of 10 s", honest, flood)
		}
		for beat := range 4 {
			time.Sleep(5 * time.Second)
			flood.heartbeat(uint64(beat), true)
			synctest.Wait()
		}
		time.Sleep(6 * time.Second)
		for beat := range 4 {
			answer, err := topic.HeartbeatAnswer.Content(flood.receive())
			if err != nil || answer.GetSequence() != uint64(beat) {
				t.Errorf("heartbeat %d: %v, %v", beat, answer, err)
			}
		}
		if n := handled["flood"].Load(); n < 10+20 || n > 12+27 {
			t.Errorf("after 26 s %d were handled", n)
		}
		before := handled["flood"].Load()
		again := b.open("flood", 2) // the debt remains
		write(again, 20)
		synctest.Wait()
		if n := handled["flood"].Load() - before; n > 1 {
			t.Errorf("a new session handled %d at once", n)
		}
		b.hub.Kick("flood", 4403, "enough")
		synctest.Wait()
		if got := b.hub.Sessions(); len(got) != 1 || got[0].Node != "honest" {
			t.Errorf("sessions: %v", got)
		}
	})
}

// Messages without a part's charge are charged by the hub: a node without credit that floods is
// read as fast as it pays.
func TestHub_EachMessageIsCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var handled atomic.Int64
		b := newBench(t, cloudhub.Config{}, part{attach: func(s cloudhub.Session, mux *message.Mux) {
			s.Charge(10 * time.Second)
			message.Handle(mux, topic.EventWrite, func(context.Context, message.Message, *topicpb.Write) error {
				handled.Add(1)
				return nil
			})
		}})
		flood := b.open("flood", 1)
		const all = 100_000 // 2 s of work
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for range all {
				flood.send(topic.EventWrite.New(message.Resource{}, &topicpb.Write{Id: 1}))
			}
		}()
		synctest.Wait()
		if n := handled.Load(); n > all/10 {
			t.Errorf("%d of %d messages were handled at once", n, all)
		}
		time.Sleep(time.Minute)
		<-sent
		synctest.Wait()
		if n := handled.Load(); n != all {
			t.Errorf("%d of %d messages were handled in a minute", n, all)
		}
	})
}
