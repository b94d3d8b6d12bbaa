package cloudhub_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

func TestConfig_ReportsEveryMistake(t *testing.T) {
	err := cloudhub.Config{MaxSessions: -1, MaxHandshakes: -1, DrainWait: -1}.Validate()
	for _, field := range []string{"maxSessions", "maxHandshakes", "drainWait"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
	if err := (cloudhub.Config{}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestHub_OpensASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var beats []uint64
		var session cloudhub.Session
		b := newBench(t, cloudhub.Config{}, part{attach: func(s cloudhub.Session, mux *message.Mux) {
			session = s
			message.Handle(mux, topic.Heartbeat, func(_ context.Context, _ message.Message, beat *topicpb.Heartbeat) error {
				beats = append(beats, beat.GetSequence())
				return nil
			})
		}})
		e := b.dial("edge-1")
		e.hello(7)
		welcome := e.welcomed()
		if welcome.GetProtocol() != topic.Protocol || welcome.GetVersion() != "v1.2.3" || welcome.GetInstance() != "cloud-1" ||
			welcome.GetUnixMillis() != time.Now().UnixMilli() {
			t.Errorf("welcome is %v", welcome)
		}
		time.Sleep(time.Second)
		e.heartbeat(41, true)
		m := e.receive()
		answer, err := topic.HeartbeatAnswer.Content(m)
		if err != nil || m.Key() != topic.HeartbeatAnswer.Key() || answer.GetSequence() != 41 {
			t.Errorf("the answer is %v, %v", m, err)
		}
		synctest.Wait()
		if diff := cmp.Diff([]uint64{41}, beats); diff != "" {
			t.Errorf("heartbeats that the part saw (-want +got):\n%s", diff)
		}
		want := []cloudhub.SessionInfo{{
			Node: "edge-1", Since: time.Now().Add(-time.Second), LastHeard: time.Now(), Transport: linktest.Memory, Remote: "pipe",
			Epoch: 7, Version: "v1.0.0", BootID: "boot", KubeletAlive: true,
		}}
		if diff := cmp.Diff(want, b.hub.Sessions(), cmpopts.EquateApproxTime(0)); diff != "" {
			t.Errorf("sessions (-want +got):\n%s", diff)
		}
		if s, ok := b.hub.Session("edge-1"); !ok || s != session || s.Node() != "edge-1" || s.Epoch() != 7 {
			t.Errorf("session is %v, %v", s, ok)
		}
		if _, ok := b.hub.Session("edge-2"); ok {
			t.Error("a node without a link has a session")
		}
		// The way down.
		if err := session.Send(t.Context(), topic.State.New(message.Resource{}, &topicpb.State{Sequence: 3})); err != nil {
			t.Fatal(err)
		}
		if state, err := topic.State.Content(e.receive()); err != nil || state.GetSequence() != 3 {
			t.Errorf("state is %v, %v", state, err)
		}
		if err := e.conn.Close(link.CloseShutdown, "edge stops"); err != nil {
			t.Fatal(err)
		}
		<-session.Done()
		synctest.Wait()
		if got := b.hub.Sessions(); len(got) != 0 {
			t.Errorf("after the end: %v", got)
		}
	})
}

// Silence is counted by the clock that nobody sets. Time in a bubble of synctest has no such clock.
func TestHub_SilenceIsNotByTheTimeOfDay(t *testing.T) {
	b := newBench(t, cloudhub.Config{})
	e := b.dial("edge-1")
	e.hello(7)
	for len(b.hub.Sessions()) == 0 {
		time.Sleep(time.Millisecond)
	}
	if heard := b.hub.Sessions()[0].LastHeard; heard == heard.Round(0) {
		t.Error("a clock that is set forward would end every session")
	}
}

// admission refuses by its function.
type admission func(node types.NodeName, cert *x509.Certificate) error

func (a admission) Admit(_ context.Context, node types.NodeName, cert *x509.Certificate) error {
	return a(node, cert)
}

func TestHub_Refuses(t *testing.T) {
	hello := func(change func(*topicpb.Hello)) func(*edge) {
		return func(e *edge) {
			h := &topicpb.Hello{Protocol: topic.Protocol, Version: "v9", Epoch: 1}
			change(h)
			e.send(topic.Hello.New(message.Resource{}, h))
		}
	}
	nothing := func(*edge) {}
	for name, c := range map[string]struct {
		node      string // "": a certificate that is no node's, "-": no certificate
		admission admission
		say       func(*edge)
		code      link.CloseCode
		reason    string
	}{
		"no certificate": {node: "-", say: nothing, code: link.CloseForbidden, reason: "no client certificate"},
		"no node":        {say: nothing, code: link.CloseForbidden, reason: "not for client"},
		"banned": {node: "a", admission: func(types.NodeName, *x509.Certificate) error { return errors.New("the certificate was revoked") }, say: nothing,
			code: link.CloseForbidden, reason: "revoked"},
		"gone": {node: "a", admission: func(types.NodeName, *x509.Certificate) error {
			return &link.CloseError{Code: link.CloseGone, Reason: "the node was removed"}
		}, say: nothing, code: link.CloseGone, reason: "removed"},
		"too busy": {node: "a", admission: func(types.NodeName, *x509.Certificate) error {
			return fmt.Errorf("limits: %w", &link.CloseError{Code: link.CloseOverloaded, Reason: "later"})
		}, say: nothing, code: link.CloseOverloaded, reason: "retry-after="},
		"admission panics": {node: "a", admission: func(types.NodeName, *x509.Certificate) error { panic("oh") }, say: nothing,
			code: link.CloseInternal, reason: "internal error"},
		"no hello": {node: "a", say: nothing, code: link.CloseTimeout, reason: "no hello within 15s"},
		"something before hello": {node: "a", say: func(e *edge) { e.heartbeat(1, true) },
			code: link.CloseProtocol, reason: "the first message is heartbeat.update"},
		"another protocol": {node: "a", say: hello(func(h *topicpb.Hello) { h.Protocol = 1 }), code: link.CloseVersion, reason: "v9 speaks 1"},
		"no epoch":         {node: "a", say: hello(func(h *topicpb.Hello) { h.Epoch = 0 }), code: link.CloseProtocol, reason: "epoch"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				config := cloudhub.Config{}
				if c.admission != nil {
					config.Admission = c.admission
				}
				b := newBench(t, config, part{attach: func(cloudhub.Session, *message.Mux) { t.Error("attached") }})
				cert := b.authority.Server(t).Leaf
				if c.node == "-" {
					cert = nil
				} else if c.node != "" {
					cert = b.authority.Node(t, c.node).Leaf
				}
				e := b.dialAs(cert)
				c.say(e)
				end := e.ended()
				if end.Code != c.code || !end.Remote || !strings.Contains(end.Reason, c.reason) {
					t.Errorf("got %v, want %d with %q", end, c.code, c.reason)
				}
				if got := b.hub.Sessions(); len(got) != 0 {
					t.Errorf("sessions: %v", got)
				}
			})
		})
	}
}

func TestHub_BanBetweenQuestionAndSession_EndsTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var banned error
		b := newBench(t, cloudhub.Config{Admission: admission(func(types.NodeName, *x509.Certificate) error { return banned })})
		old := b.open("a", 1)
		e := b.dial("a")
		synctest.Wait() // it was admitted and is silent so far
		banned = errors.New("revoked")
		if !b.hub.Kick("a", link.CloseForbidden, "revoked") {
			t.Error("the open session was not found")
		}
		if end := old.ended(); end.Code != link.CloseForbidden {
			t.Errorf("the open session ended with %v", end)
		}
		e.hello(2)
		if end := e.ended(); end.Code != link.CloseForbidden {
			t.Errorf("the new one ended with %v", end)
		}
	})
}

func TestHub_NewerSessionReplacesOlder_WhenNothingOfItIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var log []string
		note := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			log = append(log, fmt.Sprintf(format, args...))
		}
		b := newBench(t, cloudhub.Config{},
			part{
				attach: func(s cloudhub.Session, _ *message.Mux) { note("attach %d", s.Epoch()) },
				run: func(ctx context.Context, s cloudhub.Session) error {
					<-ctx.Done()
					time.Sleep(3 * time.Second) // a write that can't be stopped at once
					note("returned %d", s.Epoch())
					return nil
				},
			})
		first := b.open("a", 1)
		other := b.open("b", 1)

		second := b.dial("a")
		second.hello(2)
		if end := first.ended(); end.Code != link.CloseReplaced || !strings.Contains(end.Reason, "epoch 2") {
			t.Errorf("the first ended with %v", end)
		}
		// A third comes while the second still waits: the second leaves, the third waits on.
		third := b.dial("a")
		third.hello(5)
		if end := second.ended(); end.Code != link.CloseReplaced {
			t.Errorf("the second ended with %v", end)
		}
		// Late ones, older or equal.
		for _, epoch := range []uint64{4, 5} {
			e := b.dial("a")
			e.hello(epoch)
			if end := e.ended(); end.Code != link.CloseReplaced || !strings.Contains(end.Reason, "epoch=5 is open") {
				t.Errorf("epoch %d ended with %v", epoch, end)
			}
		}
		third.welcomed()
		if diff := cmp.Diff([]string{"attach 1", "attach 1", "returned 1", "attach 5"}, log); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
		if !other.live() || !third.live() {
			t.Error("others were closed too")
		}
		if s, ok := b.hub.Session("a"); !ok || s.Epoch() != 5 {
			t.Errorf("the session is %v", s)
		}
	})
}

func TestHub_OlderSessionThatDoesNotEnd_HoldsTheNewerBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := newBench(t, cloudhub.Config{RetryAfter: 5 * time.Second, ReplaceWait: 7 * time.Second}, part{run: func(ctx context.Context, s cloudhub.Session) error {
			if s.Epoch() == 1 {
				<-release
			}
			<-ctx.Done()
			return nil
		}})
		b.open("a", 1)
		for epoch := uint64(2); epoch < 4; epoch++ {
			e := b.dial("a")
			start := time.Now()
			e.hello(epoch)
			end := e.ended()
			if end.Code != link.CloseOverloaded || !strings.HasPrefix(end.Reason, "retry-after=") || !strings.Contains(end.Reason, "not ended") {
				t.Errorf("epoch %d ended with %v", epoch, end)
			}
			if waited := time.Since(start); waited < 7*time.Second || waited > 8*time.Second {
				t.Errorf("waited for %v", waited)
			}
		}
		close(release)
		synctest.Wait()
		if e := b.open("a", 4); !e.live() {
			t.Error("not open")
		}
	})
}

func TestHub_PartsEndTheirSessionAlone(t *testing.T) {
	fails := func(err error) func(context.Context, message.Message, *topicpb.Write) error {
		return func(context.Context, message.Message, *topicpb.Write) error { return err }
	}
	onEvent := func(handle func(context.Context, message.Message, *topicpb.Write) error) part {
		return part{attach: func(s cloudhub.Session, mux *message.Mux) {
			if s.Node() == "bad" {
				message.Handle(mux, topic.EventWrite, handle)
			}
		}}
	}
	for name, c := range map[string]struct {
		part   part
		code   link.CloseCode
		reason string
		quiet  bool // the edge sends no hello
	}{
		"unknown topic":  {part{}, link.CloseProtocol, "event.update: no handler", false},
		"handler fails":  {onEvent(fails(errors.New("no room"))), link.CloseInternal, "no room", false},
		"handler's code": {onEvent(fails(&link.CloseError{Code: link.CloseProtocol, Reason: "twice"})), link.CloseProtocol, "twice", false},
		"handler panics": {onEvent(func(context.Context, message.Message, *topicpb.Write) error { panic("secret") }),
			link.CloseInternal, "internal error", false},
		"attach panics": {part{attach: func(s cloudhub.Session, _ *message.Mux) {
			if s.Node() == "bad" {
				panic("secret")
			}
		}}, link.CloseInternal, "internal error", true},
		"run panics": {part{run: func(_ context.Context, s cloudhub.Session) error {
			if s.Node() == "bad" {
				panic("secret")
			}
			return nil
		}}, link.CloseInternal, "internal error", true},
		"run fails": {part{run: func(_ context.Context, s cloudhub.Session) error {
			if s.Node() == "bad" {
				return errors.New("lost its lease")
			}
			return nil
		}}, link.CloseInternal, "lost its lease", true},
		"part closes": {part{run: func(ctx context.Context, s cloudhub.Session) error {
			if s.Node() == "bad" {
				s.Close(link.CloseGone, strings.Repeat("gone ", 100))
			}
			<-ctx.Done()
			return ctx.Err()
		}}, link.CloseGone, "gone gone", true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stopped := false
				b := newBench(t, cloudhub.Config{}, c.part, part{stop: func(s cloudhub.Session) { stopped = stopped || s.Node() == "bad" }})
				good := b.open("good", 1)
				bad := b.dial("bad")
				bad.hello(1)
				if !c.quiet {
					bad.send(topic.EventWrite.New(message.Resource{}, &topicpb.Write{Id: 1}))
				}
				if end := bad.ended(); end.Code != c.code || !strings.Contains(end.Reason, c.reason) {
					t.Errorf("got %v, want %d with %q", end, c.code, c.reason)
				}
				if !good.live() {
					t.Error("the other session ended too")
				}
				synctest.Wait()
				if want := name != "attach panics"; stopped != want {
					t.Errorf("another part of the bad session was stopped: %v, want %v", stopped, want)
				}
			})
		})
	}
}

func TestHub_HandlerThatWaits_LearnsOfTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, cloudhub.Config{}, part{attach: func(_ cloudhub.Session, mux *message.Mux) {
			message.Handle(mux, topic.EventWrite, func(ctx context.Context, _ message.Message, _ *topicpb.Write) error {
				<-ctx.Done() // a full queue behind it
				return ctx.Err()
			})
		}})
		e := b.open("a", 1)
		e.send(topic.EventWrite.New(message.Resource{}, &topicpb.Write{Id: 1}))
		synctest.Wait()
		if err := e.conn.Close(link.CloseShutdown, "edge stops"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := b.hub.Sessions(); len(got) != 0 {
			t.Errorf("still open: %v", got)
		}
	})
}

func TestHub_Kick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, cloudhub.Config{})
		e := b.open("a", 1)
		if b.hub.Kick("b", link.CloseGone, "") {
			t.Error("kicked a node without a session")
		}
		if !b.hub.Kick("a", link.CloseGone, "the node was deleted") {
			t.Error("found no session")
		}
		if end := e.ended(); end.Code != link.CloseGone || end.Reason != "the node was deleted" {
			t.Error(end)
		}
	})
}

func TestHub_BoundsSessions_ButNotTheReturnOfANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, cloudhub.Config{MaxSessions: 2, RetryAfter: 10 * time.Second})
		b.open("a", 1)
		b.open("b", 1)
		e := b.dial("c")
		e.hello(1)
		end := e.ended()
		var seconds int
		if _, err := fmt.Sscanf(end.Reason, "retry-after=%d:", &seconds); err != nil || end.Code != link.CloseOverloaded || seconds < 10 || seconds > 20 {
			t.Errorf("refused with %v", end)
		}
		b.open("a", 2)
	})
}

func TestHub_BoundsHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, cloudhub.Config{MaxHandshakes: 2})
		slow := b.dial("a")
		b.dial("b")
		synctest.Wait()
		if end := b.dial("c").ended(); end.Code != link.CloseOverloaded || !strings.HasPrefix(end.Reason, "retry-after=") {
			t.Errorf("refused with %v", end)
		}
		slow.hello(1)
		slow.welcomed()
		b.open("c", 1) // the first has become a session and made room
	})
}

func TestHub_EndsASilentSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, cloudhub.Config{}, part{attach: func(s cloudhub.Session, mux *message.Mux) {
			message.Handle(mux, topic.EventWrite, func(ctx context.Context, _ message.Message, _ *topicpb.Write) error {
				<-ctx.Done()
				return ctx.Err()
			})
		}})
		silent, beating, held := b.open("silent", 1), b.open("beating", 1), b.open("held", 1)
		start := time.Now()
		go beating.beat()
		// A part that holds the link back does not make its edge silent.
		held.send(topic.EventWrite.New(message.Resource{}, &topicpb.Write{Id: 1}))
		if end := silent.ended(); end.Code != link.CloseTimeout || !strings.Contains(end.Reason, "no heartbeat for") {
			t.Errorf("ended with %v", end)
		}
		if d := time.Since(start); d < 40*time.Second || d > 46*time.Second {
			t.Errorf("ended after %v", d)
		}
		time.Sleep(time.Minute)
		if !beating.live() || !held.live() {
			t.Error("others were closed too")
		}
	})
}

func TestHub_EndsASessionWhoseCertificateExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, cloudhub.Config{})
		e := b.open("a", 1)
		go e.beat()
		time.Sleep(23 * time.Hour)
		if !e.live() {
			t.Fatal(e.conn.Err())
		}
		if end := e.ended(); end.Code != link.CloseShutdown || !strings.Contains(end.Reason, "certificate expired") {
			t.Error(end)
		}
	})
}

func TestHub_Drains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		returned := 0
		b := newBench(t, cloudhub.Config{}, part{run: func(ctx context.Context, _ cloudhub.Session) error {
			<-ctx.Done()
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			returned++
			return nil
		}})
		var edges []*edge
		for i := range 200 {
			edges = append(edges, b.open(fmt.Sprintf("edge-%d", i), 1))
		}
		waiting := b.dial("stranger")
		synctest.Wait()
		b.stop()
		if end := waiting.ended(); end.Code != link.CloseShutdown {
			t.Errorf("one in its handshake ended with %v", end)
		}
		if end := b.dial("late").ended(); end.Code != link.CloseShutdown {
			t.Errorf("one that came meanwhile ended with %v", end)
		}
		start := time.Now()
		if err := b.end(); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d > 3*time.Second {
			t.Errorf("drained in %v", d)
		}
		for _, e := range edges {
			if end := e.ended(); end.Code != link.CloseShutdown || !end.Remote {
				t.Errorf("ended with %v", end)
			}
		}
		if returned != len(edges) {
			t.Errorf("%d parts returned before Run did", returned)
		}
	})
}

func TestHub_Drain_NamesWhoIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := newBench(t, cloudhub.Config{}, part{run: func(_ context.Context, s cloudhub.Session) error {
			if s.Node() == "stuck" {
				<-release
			}
			return nil
		}})
		b.open("stuck", 1)
		b.open("fine", 1)
		if err := b.end(); err == nil || !strings.Contains(err.Error(), "1 nodes") || !strings.Contains(err.Error(), "stuck") {
			t.Errorf("got %v", err)
		}
		close(release)
	})
}

func TestHub_ListenerThatFailsEndsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, cloudhub.Config{})
		e := b.open("a", 1)
		if err := b.listener.Close(); err != nil {
			t.Fatal(err)
		}
		<-b.done
		if b.err == nil || !strings.Contains(b.err.Error(), "listener") {
			t.Errorf("Run returned %v", b.err)
		}
		if end := e.ended(); end.Code != link.CloseShutdown {
			t.Errorf("the session ended with %v", end)
		}
	})
}

func TestHub_Collects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, cloudhub.Config{})
		registry := prometheus.NewPedanticRegistry()
		if err := registry.Register(b.hub); err != nil {
			t.Fatal(err)
		}
		e := b.open("a", 1)
		e.heartbeat(1, true)
		e.receive()
		b.open("b", 1)
		if end := b.dialAs(b.authority.Server(t).Leaf).ended(); end.Code != link.CloseForbidden {
			t.Errorf("a stranger's link ended with %v", end)
		}
		before := gather(t, registry)
		if err := e.conn.Close(link.CloseShutdown, ""); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		after := gather(t, registry)
		const bytes = "skerry_hub_bytes_total urgent received"
		if before[bytes] == 0 || before[bytes] != after[bytes] {
			t.Errorf("bytes before and after the end of a session: %v, %v", before[bytes], after[bytes])
		}
		for metric, want := range map[string]float64{
			"skerry_hub_sessions memory":                          1,
			"skerry_hub_sessions websocket":                       0,
			"skerry_hub_handshakes":                               0,
			"skerry_hub_connects_total memory":                    2,
			"skerry_hub_refused_total 4400 memory":                1,
			"skerry_hub_closes_total edge 4000 memory":            1,
			"skerry_hub_messages_total received heartbeat.update": 1,
			"skerry_hub_messages_total sent heartbeat.response":   1,
			"skerry_hub_messages_total sent hello.response":       2,
		} {
			if got, ok := after[metric]; !ok || got != want {
				t.Errorf("%s is %v, want %v", metric, got, want)
			}
		}
	})
}

// gather returns each value by the metric's name and the values of its labels.
func gather(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := []string{f.GetName()}
			for _, l := range m.GetLabel() {
				name = append(name, l.GetValue())
			}
			values[strings.Join(name, " ")] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return values
}

// A device that reports a wrong trust bundle gets a correction; one that reports no bundle gets no
// correction.
func TestHub_TellsWhomToTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, cloudhub.Config{Trust: func(sum []byte) *topicpb.Trust {
			if string(sum) == "right" {
				return nil
			}
			return &topicpb.Trust{Ca: []byte("ca for " + string(sum))}
		}})
		for sum, want := range map[string]string{"right": "", "wrong": "ca for wrong", "": ""} {
			e := b.dial("edge-" + sum + "x")
			e.send(topic.Hello.New(message.Resource{}, &topicpb.Hello{Protocol: topic.Protocol, Epoch: 1, Trust: []byte(sum)}))
			if got := string(e.welcomed().GetTrust().GetCa()); got != want {
				t.Errorf("%q gets %q, want %q", sum, got, want)
			}
		}
	})
}
