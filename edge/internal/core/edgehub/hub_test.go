package edgehub_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/edgehub"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
)

var errRefused = &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}

func refuse(string) error { return errRefused }
func hang(string) error   { return errHang }

func TestConfig_ReportsEveryMistake(t *testing.T) {
	err := edgehub.Config{Servers: []string{"cloud"}, Keepalive: time.Millisecond, BackoffMin: time.Minute, BackoffMax: time.Second, Eager: -1}.Validate()
	for _, field := range []string{"servers[0]", "dialer", "keepalive", "backoffMax", "eager"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
	if _, err := edgehub.New(edgehub.Config{}); err == nil || !strings.Contains(err.Error(), "at least one") {
		t.Errorf("without a server: %v", err)
	}
}

func TestHub_OpensASession_AndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		c := b.cloud()
		hello := c.welcome()
		if hello.GetProtocol() != topic.Protocol || hello.GetEpoch() != 11 || hello.GetBootId() != "boot" || hello.GetVersion() != "v1.0.0" ||
			hello.GetKeepaliveMillis() != 10_000 {
			t.Errorf("hello is %v", hello)
		}
		want := linkstate.Link{
			Epoch: 11, Instance: "cloud-1", Version: "v2.0.0", Transport: "memory", Remote: "cloud:10000",
			CloudTime: time.Now().Add(90 * time.Second), Since: time.Now(),
		}
		if diff := cmp.Diff(want, b.up(), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("up (-want +got):\n%s", diff)
		}
		synctest.Wait()
		status := edgehub.Status{
			Linked: true, Server: "cloud:10000", Transport: linktest.Memory, Instance: "cloud-1", Version: "v2.0.0", Epoch: 11,
			Since: time.Now(), LastContact: time.Now(), ClockSkew: 90 * time.Second,
		}
		if diff := cmp.Diff(status, b.hub.Status()); diff != "" {
			t.Errorf("status (-want +got):\n%s", diff)
		}
	})
}

func TestHub_CarriesMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *edgehub.Config) { c.Routes = map[message.Kind]message.Name{"pod": "metamanager"} })
		c := b.open()

		// Down, in order, after the news of the link; an answer copies the session.
		for i := range uint64(100) {
			c.send(topic.State.New(message.Resource{}, &topicpb.State{Sequence: i}))
		}
		for i := range uint64(100) {
			m := b.next()
			state, err := topic.State.Content(m)
			if err != nil || state.GetSequence() != i || m.Header.Session != 11 || m.Route.Source != edgehub.Name {
				t.Fatalf("message %d is %+v, %v", i, m, err)
			}
			if i == 99 {
				b.send(m.Answer(&topicpb.StateAck{Sequence: i}))
			}
		}
		up := c.receive()
		if ack, err := topic.StateAck.Content(up); err != nil || ack.GetSequence() != 99 {
			t.Errorf("ack is %v, %v", ack, err)
		}
		if up.Route.Source != "" || !up.Header.Time.IsZero() {
			t.Errorf("the link carries what the cloud has no use for: from %q at %v", up.Route.Source, up.Header.Time)
		}
		b.send(topic.EventWrite.New(message.Resource{Namespace: "default", Name: "a"}, &topicpb.Write{Namespace: "default", Name: "a"}))
		up = c.receive()
		if w, err := topic.EventWrite.Content(up); err != nil || w.GetName() != "a" || up.Route.Resource != (message.Resource{}) {
			t.Errorf("a write is of %v, and says it is about %v: %v", w, up.Route.Resource, err)
		}

		// Requests, their answers in another order.
		var asks sync.WaitGroup
		for i := range 20 {
			asks.Go(func() {
				m, err := b.port.SendSync(context.Background(), edgehub.Name, request(path(i)))
				if err != nil {
					t.Errorf("request %d: %v", i, err)
					return
				}
				if answer, err := topic.APIResponse.Content(m); err != nil || string(answer.GetBody()) != path(i) {
					t.Errorf("answer %d is %v, %v", i, answer, err)
				}
			})
		}
		var asked []message.Message
		for range 20 {
			m := c.receive()
			if !m.Header.Sync {
				t.Errorf("%s does not say that a caller waits", m.Key())
			}
			asked = append(asked, m)
		}
		for i := range asked {
			m := asked[len(asked)-1-i]
			c.send(m.Answer(&topicpb.APIResponse{Code: 200, Body: []byte(m.Content.(*topicpb.APIRequest).GetPath())}))
		}
		asks.Wait()

		// An answer without a waiting caller is dropped.
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := b.port.SendSync(ctx, edgehub.Name, request("/late")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		m := c.receive()
		c.send(m.Answer(&topicpb.APIResponse{}))
		c.send(topic.EventResult.New(message.Resource{}, &topicpb.WriteResult{Id: 5}))
		if next := b.next(); next.Key() != topic.EventResult.Key() {
			t.Errorf("metamanager got %s", next.Key())
		}
	})
}

func TestHub_WithoutALink_RefusesAndDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		b.network.set(hang)
		synctest.Wait()
		start := time.Now()
		if _, err := b.port.SendSync(t.Context(), edgehub.Name, request("/")); !errors.Is(err, linkstate.ErrNoLink) || time.Since(start) != 0 {
			t.Errorf("got %v after %v", err, time.Since(start))
		}
		b.send(topic.EventWrite.New(message.Resource{}, &topicpb.Write{Id: 1}))
		synctest.Wait()
		if got := b.metric("skerry_edgehub_dropped_total event.update"); got != 1 {
			t.Errorf("dropped %v", got)
		}
		b.network.set(nil)
		c := b.open()
		// Messages of an earlier session are dropped in this one; messages without a session are
		// sent.
		stale := topic.StateAck.New(message.Resource{}, &topicpb.StateAck{Sequence: 9})
		stale.Header.Session = 10
		b.send(stale)
		b.send(topic.EventWrite.New(message.Resource{}, &topicpb.Write{Id: 2}))
		if write, err := topic.EventWrite.Content(c.receive()); err != nil || write.GetId() != 2 {
			t.Errorf("got %v, %v", write, err)
		}
	})
}

func TestHub_LinkThatDies_AnswersThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *edgehub.Config) { c.MaxPending = 3 })
		c := b.open()
		var asks sync.WaitGroup
		for i := range 3 {
			asks.Go(func() {
				if _, err := b.port.SendSync(context.Background(), edgehub.Name, request(path(i))); !errors.Is(err, linkstate.ErrNoLink) {
					t.Errorf("got %v", err)
				}
			})
		}
		synctest.Wait()
		if _, err := b.port.SendSync(t.Context(), edgehub.Name, request("/one-too-many")); !errors.Is(err, edgehub.ErrBusy) {
			t.Errorf("got %v", err)
		}
		start := time.Now()
		b.network.set(hang)
		c.close(link.CloseShutdown, "cloudcore stops")
		asks.Wait()
		if d := time.Since(start); d > time.Second {
			t.Errorf("answered after %v", d)
		}
		loss := b.down()
		end, ok := errors.AsType[*link.CloseError](loss.Reason)
		if !ok || loss.Epoch != 11 || end.Code != link.CloseShutdown || !end.Remote {
			t.Errorf("down is %+v", loss)
		}
		synctest.Wait()
		if status := b.hub.Status(); status.Linked || !strings.Contains(status.LastError, "cloudcore stops") {
			t.Errorf("status is %+v", status)
		}
	})
}

func TestHub_RequestThatIsNeverAnswered_EndsSomeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		go b.open().keep(t.Context())
		start := time.Now()
		_, err := b.port.SendSync(context.Background(), edgehub.Name, request("/"))
		if err == nil || !strings.Contains(err.Error(), "no answer from the cloud") {
			t.Errorf("got %v", err)
		}
		if d := time.Since(start); d < 5*time.Minute || d > 5*time.Minute+10*time.Second {
			t.Errorf("after %v", d)
		}
	})
}

func TestHub_MessageThatCantBeSent_IsItsSendersTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		c := b.open()
		private := message.NewTopic[string]("private", message.Update, message.Every)
		if _, err := b.port.SendSync(t.Context(), edgehub.Name, private.New(message.Resource{}, "x")); !errors.Is(err, topic.ErrUnknown) {
			t.Errorf("got %v", err)
		}
		b.send(private.New(message.Resource{}, "y"))
		b.send(topic.EventWrite.New(message.Resource{}, &topicpb.Write{Id: 2}))
		if m := c.receive(); m.Key() != topic.EventWrite.Key() {
			t.Errorf("got %s", m.Key())
		}
	})
}

func TestHub_RestartedModule_GetsANewSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		b.send(linkstate.Renew.New(message.Resource{}, struct{}{})) // before there was one: of no effect
		time.Sleep(time.Second)
		c := b.open()
		time.Sleep(time.Second)
		start := time.Now()
		b.send(linkstate.Renew.New(message.Resource{}, struct{}{}))
		if end := c.ended(); end.Code != link.CloseShutdown || !strings.Contains(end.Reason, "metamanager") {
			t.Errorf("ended with %v", end)
		}
		b.down()
		b.open()
		if d := time.Since(start); d != 0 {
			t.Errorf("the new session came after %v", d)
		}
	})
}

func TestHub_Stops(t *testing.T) {
	for name, dial := range map[string]func(string) error{"linked": nil, "dialling": hang, "waiting": refuse} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, nil)
				b.network.set(dial)
				var c *cloud
				if dial == nil {
					c = b.open()
				}
				time.Sleep(time.Second)
				start := time.Now()
				last := make(chan message.Message, 1)
				go func() {
					m, _ := b.port.Receive(context.Background()) // no message without a link
					last <- m
				}()
				synctest.Wait()
				b.stop()
				m := <-last
				if c != nil {
					if end := c.ended(); end.Code != link.CloseShutdown || !end.Remote {
						t.Errorf("ended with %v", end)
					}
					if loss, err := linkstate.Down.Content(m); err != nil || loss.Epoch != 11 {
						t.Errorf("metamanager heard %+v, %v", m, err)
					}
				}
				<-b.done
				if d := time.Since(start); b.err != nil || d > time.Second {
					t.Errorf("stopped after %v: %v", d, b.err)
				}
			})
		})
	}
}
