package edgehub_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/edgehub"
)

func TestHub_Heartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		c := b.cloud()
		c.welcome()
		b.up()
		start := time.Now()
		type beat struct {
			At       time.Duration
			Sequence uint64
			Alive    bool
		}
		var got []beat
		for range 5 {
			h := c.heartbeat()
			got = append(got, beat{time.Since(start), h.GetSequence(), h.GetKubeletAlive()})
			switch h.GetSequence() {
			case 2:
				time.Sleep(3500 * time.Millisecond)
				b.setAlive(true)
			case 4:
				time.Sleep(500 * time.Millisecond)
				b.setAlive(false)
			}
		}
		want := []beat{{0, 1, false}, {10 * time.Second, 2, false}, {14 * time.Second, 3, true}, {20 * time.Second, 4, true}, {21 * time.Second, 5, false}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("heartbeats (-want +got):\n%s", diff)
		}
	})
}

// The report of an idle device takes no byte in a heartbeat.
func TestHub_Heartbeats_Report(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		end := time.Now().Add(time.Hour)
		r := edgehub.Report{CertificateEnd: end}
		b := newBench(t, func(c *edgehub.Config) {
			c.Report = func() edgehub.Report {
				mu.Lock()
				defer mu.Unlock()
				return r
			}
		})
		c := b.open()
		h := c.heartbeat()
		if h.GetBacklog() != 0 || h.GetBacklogSeconds() != 0 || h.GetCertificateUnix() != 0 {
			t.Errorf("idle: %v", h)
		}
		mu.Lock()
		r = edgehub.Report{Backlog: 3, BacklogAge: 90 * time.Second, CertificateEnd: end}
		mu.Unlock()
		if h := c.heartbeat(); h.GetBacklog() != 3 || h.GetBacklogSeconds() != 90 || h.GetCertificateUnix() != 0 {
			t.Errorf("with a backlog: %v", h)
		}
		mu.Lock()
		r = edgehub.Report{CertificateEnd: end.Add(time.Hour)}
		mu.Unlock()
		if h := c.heartbeat(); h.GetBacklog() != 0 || h.GetCertificateUnix() != end.Add(time.Hour).Unix() {
			t.Errorf("with a new certificate: %v", h)
		}
	})
}

func TestHub_ToldThatAlivenessChanged_LooksAtOnceAndOnlyThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changed := make(chan struct{})
		b := newBench(t, func(c *edgehub.Config) { c.AliveChanged = changed })
		c := b.open()
		start := time.Now()
		b.setAlive(true)
		time.Sleep(2 * time.Second)
		changed <- struct{}{}
		if h := c.heartbeat(); !h.GetKubeletAlive() || time.Since(start) != 2*time.Second {
			t.Errorf("%v after %v", h, time.Since(start))
		}
		changed <- struct{}{} // no change: the next heartbeat is sent when it is due
		if c.heartbeat(); time.Since(start) != 10*time.Second {
			t.Errorf("the next came after %v", time.Since(start))
		}
	})
}

func TestHub_GivesUpALinkOnWhichNothingComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		c := b.open()
		start := time.Now()
		if end := c.ended(); end.Code != link.CloseTimeout || !end.Remote {
			t.Errorf("ended with %v", end)
		}
		if d := time.Since(start); d != 30*time.Second {
			t.Errorf("after %v", d)
		}
		b.down()
		if next := b.open(); next == nil {
			t.Error("no new link")
		}
	})
}

func TestHub_AnyMessageShowsThatTheLinkLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		c := b.open()
		for i := range uint64(20) {
			time.Sleep(19 * time.Second) // within any two intervals there is one
			c.send(topic.State.New(message.Resource{}, &topicpb.State{Sequence: i}))
			b.next()
		}
		if err := c.conn.Err(); err != nil {
			t.Error(err)
		}
	})
}

func TestHub_BusyModuleIsNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		c := b.open()
		go c.keep(t.Context())
		for i := range uint64(260) { // more than metamanager's mailbox holds
			c.send(topic.State.New(message.Resource{}, &topicpb.State{Sequence: i}))
		}
		time.Sleep(2 * time.Minute)
		if err := c.conn.Err(); err != nil {
			t.Fatal(err)
		}
		for range 260 {
			b.next()
		}
	})
}
