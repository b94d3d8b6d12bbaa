package hub_test

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
	"github.com/prometheus/client_golang/prometheus"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/hub"
	"github.com/skerry-io/skerry/edge/internal/linkstate"
)

var errRefused = &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}

func refuse(string) error { return errRefused }
func hang(string) error   { return errHang }

func TestConfig_ReportsEveryMistake(t *testing.T) {
	err := hub.Config{Servers: []string{"cloud"}, Keepalive: time.Millisecond, BackoffMin: time.Minute, BackoffMax: time.Second, Eager: -1}.Validate()
	for _, field := range []string{"servers[0]", "dialer", "keepalive", "backoffMax", "eager"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
	if _, err := hub.New(hub.Config{}); err == nil || !strings.Contains(err.Error(), "at least one") {
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
		status := hub.Status{
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
		b := newBench(t, func(c *hub.Config) { c.Routes = map[message.Kind]message.Name{"pod": "metamanager"} })
		c := b.open()

		// Down, in order, after the news of the link; an answer copies the session.
		for i := range uint64(100) {
			c.send(topic.State.New(message.Resource{}, &topicpb.State{Sequence: i}))
		}
		for i := range uint64(100) {
			m := b.next()
			state, err := topic.State.Content(m)
			if err != nil || state.GetSequence() != i || m.Header.Session != 11 || m.Route.Source != hub.Name {
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
				m, err := b.port.SendSync(context.Background(), hub.Name, request(path(i)))
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

		// An answer for which no caller waits any more is dropped.
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := b.port.SendSync(ctx, hub.Name, request("/late")); !errors.Is(err, context.DeadlineExceeded) {
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
		if _, err := b.port.SendSync(t.Context(), hub.Name, request("/")); !errors.Is(err, hub.ErrNoLink) || time.Since(start) != 0 {
			t.Errorf("got %v after %v", err, time.Since(start))
		}
		b.send(topic.EventWrite.New(message.Resource{}, &topicpb.Write{Id: 1}))
		synctest.Wait()
		if got := b.metric("skerry_edgehub_dropped_total event.update"); got != 1 {
			t.Errorf("dropped %v", got)
		}
		b.network.set(nil)
		c := b.open()
		// What belongs to an earlier session is not for this one; what belongs to none is.
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
		b := newBench(t, func(c *hub.Config) { c.MaxPending = 3 })
		c := b.open()
		var asks sync.WaitGroup
		for i := range 3 {
			asks.Go(func() {
				if _, err := b.port.SendSync(context.Background(), hub.Name, request(path(i))); !errors.Is(err, hub.ErrNoLink) {
					t.Errorf("got %v", err)
				}
			})
		}
		synctest.Wait()
		if _, err := b.port.SendSync(t.Context(), hub.Name, request("/one-too-many")); !errors.Is(err, hub.ErrBusy) {
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
		_, err := b.port.SendSync(context.Background(), hub.Name, request("/"))
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
		if _, err := b.port.SendSync(t.Context(), hub.Name, private.New(message.Resource{}, "x")); !errors.Is(err, topic.ErrUnknown) {
			t.Errorf("got %v", err)
		}
		b.send(private.New(message.Resource{}, "y"))
		b.send(topic.EventWrite.New(message.Resource{}, &topicpb.Write{Id: 2}))
		if m := c.receive(); m.Key() != topic.EventWrite.Key() {
			t.Errorf("got %s", m.Key())
		}
	})
}

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

// What a heartbeat reports of an idle device takes no byte.
func TestHub_Heartbeats_Report(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		end := time.Now().Add(time.Hour)
		r := hub.Report{CertificateEnd: end}
		b := newBench(t, func(c *hub.Config) {
			c.Report = func() hub.Report {
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
		r = hub.Report{Backlog: 3, BacklogAge: 90 * time.Second, CertificateEnd: end}
		mu.Unlock()
		if h := c.heartbeat(); h.GetBacklog() != 3 || h.GetBacklogSeconds() != 90 || h.GetCertificateUnix() != 0 {
			t.Errorf("with a backlog: %v", h)
		}
		mu.Lock()
		r = hub.Report{CertificateEnd: end.Add(time.Hour)}
		mu.Unlock()
		if h := c.heartbeat(); h.GetBacklog() != 0 || h.GetCertificateUnix() != end.Add(time.Hour).Unix() {
			t.Errorf("with a new certificate: %v", h)
		}
	})
}

func TestHub_ToldThatAlivenessChanged_LooksAtOnceAndOnlyThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changed := make(chan struct{})
		b := newBench(t, func(c *hub.Config) { c.AliveChanged = changed })
		c := b.open()
		start := time.Now()
		b.setAlive(true)
		time.Sleep(2 * time.Second)
		changed <- struct{}{}
		if h := c.heartbeat(); !h.GetKubeletAlive() || time.Since(start) != 2*time.Second {
			t.Errorf("%v after %v", h, time.Since(start))
		}
		changed <- struct{}{} // nothing new: the next heartbeat comes when it is due
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

func TestHub_DialsAtOnce_AndBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		b.network.set(refuse)
		synctest.Wait()
		first := b.network.take()
		if len(first) == 0 || first[0].At != 0 {
			t.Fatalf("dialled %v", first)
		}
		time.Sleep(time.Hour)
		dials := b.network.take()
		// 15 s between two on average, once the back-off has grown.
		if n := len(dials); n < 150 || n > 400 {
			t.Errorf("%d dials in an hour", n)
		}
		for i, d := range dials[1:] {
			if gap := d.At - dials[i].At; gap > 30*time.Second {
				t.Errorf("%v between two dials", gap)
			}
		}
		status := b.hub.Status()
		if status.Linked || status.Attempts < 150 || !strings.Contains(status.LastError, "connection refused") || !status.NextTry.After(time.Now()) {
			t.Errorf("status is %+v", status)
		}
		b.network.set(nil)
		b.open()
		if got := b.hub.Status(); got.LastError != "" || got.Attempts != 0 || !got.Linked {
			t.Errorf("status is %+v", got)
		}
	})
}

// A silent cut: packets vanish and no interface tells. A try begun before the end of the cut waits
// for TCP's own back-off; a fresh one connects.
func TestHub_SilentCutOf60s_IsOverWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		c := b.open()
		whole, cut := context.WithCancel(t.Context())
		go c.keep(whole)
		time.Sleep(5 * time.Minute)
		b.network.take()
		cut()
		b.network.set(hang)
		start := time.Now()
		b.down()
		if d := time.Since(start); d > 40*time.Second {
			t.Errorf("noticed after %v", d)
		}
		time.Sleep(60*time.Second - time.Since(start))
		dials := b.network.take()
		for i, d := range dials[1:] {
			if gap := d.At - dials[i].At; gap < 500*time.Millisecond || gap > time.Second {
				t.Errorf("%v between two dials", gap)
			}
		}
		b.network.set(nil)
		start = time.Now()
		b.open()
		if d := time.Since(start); d > time.Second {
			t.Errorf("linked %v after the cut", d)
		}
	})
}

func TestHub_WakesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		b.network.set(hang)
		time.Sleep(time.Hour)
		b.network.take()
		b.network.set(nil)
		start := time.Now()
		b.wake <- struct{}{}
		b.open()
		if d := time.Since(start); d > 250*time.Millisecond {
			t.Errorf("linked %v after the network changed", d)
		}
	})
}

func TestHub_WakesUp_AndDoesNotSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		b.network.set(refuse)
		synctest.Wait()
		b.network.take()
		for range 1000 {
			time.Sleep(10 * time.Millisecond)
			b.wake <- struct{}{}
		}
		if n := len(b.network.take()); n > 60 {
			t.Errorf("%d dials in 10 s", n)
		}
	})
}

func TestHub_HonoursRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		c := b.cloud()
		c.receive()
		c.close(link.CloseOverloaded, "retry-after=100: all sessions are taken")
		start := time.Now()
		b.open()
		if d := time.Since(start); d < 100*time.Second || d > 126*time.Second {
			t.Errorf("came back after %v", d)
		}
	})
}

func TestHub_RefusalThatWontPass_IsToldAndRetriedSlowly(t *testing.T) {
	for name, c := range map[string]struct {
		refuse  func(*bench, *cloud, message.Message)
		problem string
	}{
		"forbidden": {func(_ *bench, c *cloud, _ message.Message) {
			c.close(link.CloseForbidden, "the certificate was revoked")
		},
			"refuses this node: the certificate was revoked"},
		"gone": {func(_ *bench, c *cloud, _ message.Message) { c.close(link.CloseGone, "deleted") }, "removed this node"},
		"version, of every replica that is met": {func(b *bench, c *cloud, hello message.Message) {
			for i := range 10 {
				if i > 0 { // soon: behind the same address may be another
					c = b.cloud()
					hello = c.receive()
				}
				c.send(hello.Answer(&topicpb.Welcome{Protocol: 9, Version: "v9.0.0"}))
				if end := c.ended(); end.Code != link.CloseVersion || !strings.Contains(end.Reason, "v9.0.0 at cloud:10000 speaks 9") {
					t.Errorf("ended with %v", end)
				}
			}
		}, "upgrade the older one"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, nil)
				cloud := b.cloud()
				hello := cloud.receive()
				c.refuse(b, cloud, hello)
				start := time.Now()
				time.Sleep(time.Minute)
				if status := b.hub.Status(); !strings.Contains(status.Problem, c.problem) || !strings.Contains(status.Problem, "5m0s") ||
					status.NextTry.Before(time.Now()) {
					t.Errorf("status is %+v", status)
				}
				b.open()
				if d := time.Since(start); d < 4*time.Minute || d > 6*time.Minute {
					t.Errorf("came back after %v", d)
				}
				if got := b.hub.Status().Problem; got != "" {
					t.Errorf("still: %s", got)
				}
			})
		})
	}
}

// An edge that has lost its store, and whose clock is behind, learns from the cloud above which
// epoch to go on.
func TestHub_CountsOnAboveTheEpochThatTheCloudKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		c := b.cloud()
		c.receive()
		c.close(link.CloseReplaced, "a session of this node has had epoch=4711, this one has 1")
		for want := uint64(4712); want < 4715; want++ {
			c = b.cloud()
			hello, err := topic.Hello.Content(c.receive())
			if err != nil || hello.GetEpoch() != want {
				t.Errorf("epoch %d, want %d: %v", hello.GetEpoch(), want, err)
			}
			c.close(link.CloseShutdown, "cloudcore stops")
		}
	})
}

func TestHub_AnotherDeviceWithOurName_IsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		for range 2 {
			if got := b.hub.Status().Problem; got != "" {
				t.Errorf("too early: %s", got)
			}
			c := b.open()
			time.Sleep(time.Second)
			c.close(link.CloseReplaced, "a newer session of this node took over")
			b.down()
			synctest.Wait()
		}
		if got := b.hub.Status().Problem; !strings.Contains(got, "another device uses the same node name") {
			t.Errorf("problem is %q", got)
		}
	})
}

func TestHub_StrangeAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(*cloud)
		code   link.CloseCode
		within time.Duration
	}{
		"silence": {func(*cloud) {}, link.CloseTimeout, 26 * time.Second},
		"something else": {func(c *cloud) { c.send(topic.State.New(message.Resource{}, &topicpb.State{})) },
			link.CloseProtocol, time.Second},
		"welcome twice": {func(c *cloud) {
			c.send(c.receive().Answer(&topicpb.Welcome{Protocol: topic.Protocol}))
			c.send(topic.Welcome.New(message.Resource{}, &topicpb.Welcome{Protocol: topic.Protocol}))
		}, link.CloseProtocol, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, nil)
				cloud := b.cloud()
				start := time.Now()
				c.answer(cloud)
				if end := cloud.ended(); end.Code != c.code || !end.Remote {
					t.Errorf("ended with %v", end)
				}
				if d := time.Since(start); d > c.within {
					t.Errorf("after %v", d)
				}
			})
		})
	}
}

func TestHub_NoEpoch_NoSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		b.epochs.mu.Lock()
		b.epochs.err = errors.New("no space left on device")
		b.epochs.mu.Unlock()
		if end := b.cloud().ended(); end.Code != link.CloseInternal || strings.Contains(end.Reason, "space") {
			t.Errorf("the cloud received %v", end)
		}
		synctest.Wait()
		if got := b.hub.Status().LastError; !strings.Contains(got, "no space left") {
			t.Errorf("last error is %q", got)
		}
		b.epochs.mu.Lock()
		b.epochs.err = nil
		b.epochs.mu.Unlock()
		for { // the hub may have dialled again before the disk had room
			c := b.cloud()
			if _, err := c.conn.Receive(t.Context()); err == nil {
				break
			}
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
					m, _ := b.port.Receive(context.Background()) // nothing, where there was no link
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

// metric returns the value of a metric by its name and the values of its labels.
func (b *bench) metric(name string) float64 {
	b.t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(b.hub); err != nil {
		b.t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			full := []string{f.GetName()}
			for _, l := range m.GetLabel() {
				full = append(full, l.GetValue())
			}
			if strings.Join(full, " ") == name {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}
