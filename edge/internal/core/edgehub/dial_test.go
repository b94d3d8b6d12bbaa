package edgehub_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

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

// A silent cut: packets vanish without an interface event. An attempt begun before the end of the
// cut waits for TCP's own back-off; a fresh one connects.
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

// A thin link flaps: each session works for a while, and then its connection is reset. The back-off
// grows after sessions that brought nothing, that the cloud closed, or that ended at once.
func TestHub_LinkThatFlaps(t *testing.T) {
	const sessions = 40
	for name, c := range map[string]struct {
		lasts   time.Duration
		carries bool
		end     func(*bench, *cloud)
		// least and most are for all waits together: their sum is random (full jitter), and five
		// standard deviations and more away from both.
		least, most time.Duration
	}{
		"worked":                   {15 * time.Second, true, reset, 0, sessions * time.Second},
		"worked for seconds":       {5 * time.Second, true, reset, sessions * 2 * time.Second, sessions * 8 * time.Second},
		"carried only heartbeats":  {15 * time.Second, false, reset, sessions * 7 * time.Second, sessions * 23 * time.Second},
		"ended at once":            {0, true, reset, sessions * 5 * time.Second, sessions * 15 * time.Second},
		"ended at once and silent": {0, false, reset, sessions * 7 * time.Second, sessions * 23 * time.Second},
		"ended by the cloud": {
			15 * time.Second, true, func(_ *bench, c *cloud) { c.close(link.CloseInternal, "trouble") },
			sessions * 7 * time.Second, sessions * 23 * time.Second,
		},
		"given up by the cloud": {
			40 * time.Second, true, func(_ *bench, c *cloud) { c.close(link.CloseTimeout, "no heartbeat") }, 0, sessions * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, nil)
				var waits time.Duration
				for range sessions {
					l := b.open()
					if c.carries {
						l.send(topic.APIRequest.New(message.Resource{}, &topicpb.APIRequest{Path: "/"}))
						b.next()
					}
					keep, stop := context.WithCancel(t.Context())
					go l.keep(keep)
					time.Sleep(c.lasts)
					stop()
					c.end(b, l)
					ended := time.Now()
					b.down()
					select {
					case conn := <-b.network.conns:
						waits += time.Since(ended)
						go func() { b.network.conns <- conn }()
					case <-time.After(time.Hour):
						t.Fatal("no link within an hour")
					}
				}
				b.open()
				if waits < c.least || waits > c.most {
					t.Errorf("%d waits lasted %v, want %v to %v", sessions, waits, c.least, c.most)
				}
			})
		})
	}
}

func reset(b *bench, _ *cloud) { b.network.sever() }

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
// epoch to continue.
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
