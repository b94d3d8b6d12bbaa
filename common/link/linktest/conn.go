package linktest

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// patience bounds waits for expected messages; no test measures it.
const patience = 30 * time.Second

// PairOptions are a test's wishes for a pair of ends.
type PairOptions struct {
	Edge, Cloud link.Config
	Network     *Network // between them; may be nil
}

// Ends are the two ends of one link.
type Ends struct {
	Edge, Cloud link.Conn
	// The certificate of each end.
	EdgeCertificate, CloudCertificate *x509.Certificate
}

// TestConn is the contract of link.Conn; every transport's own test calls it. pair makes the two
// ends of a new link, which are closed when the test ends.
func TestConn(t *testing.T, pair func(*testing.T, PairOptions) Ends) {
	plain := func(t *testing.T) Ends { return pair(t, PairOptions{Edge: link.Default(), Cloud: link.Default()}) }
	for name, test := range map[string]func(*testing.T){
		"messages arrive whole":             func(t *testing.T) { testWhole(t, plain(t)) },
		"order within a class":              func(t *testing.T) { testOrder(t, plain(t)) },
		"a heartbeat overtakes bulk":        func(t *testing.T) { testPriority(t, pair) },
		"too large to send":                 func(t *testing.T) { testTooLargeToSend(t, plain(t)) },
		"too large to receive":              func(t *testing.T) { testTooLargeToReceive(t, pair) },
		"many large ones at once":           func(t *testing.T) { testManyLarge(t, pair) },
		"a full queue holds back":           func(t *testing.T) { testFullQueue(t, pair) },
		"a close code travels":              func(t *testing.T) { testClose(t, plain) },
		"Island_10 half open":               func(t *testing.T) { testHalfOpen(t, pair) },
		"a reader that stalls":              func(t *testing.T) { testStall(t, pair) },
		"an idle link lives":                func(t *testing.T) { testIdle(t, pair) },
		"everything at once":                func(t *testing.T) { testConcurrent(t, plain) },
		"the peer is who the handshake saw": func(t *testing.T) { testInfo(t, plain(t)) },
		"both ends have a dictionary":       func(t *testing.T) { testDictionary(t, plain(t)) },
		"it counts":                         func(t *testing.T) { testStats(t, plain(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { noGoroutines(t) }) // runs after the cleanup of the pair, which was registered later
			test(t)
		})
	}
}

// Event makes a message of class Bulk with size bytes of content that does not compress.
func Event(id uint64, size int) message.Message {
	body := make([]byte, size)
	random := rand.NewChaCha8([32]byte{byte(id)})
	_, _ = random.Read(body) // it never fails
	return topic.EventWrite.New(message.Resource{Namespace: "default", Name: fmt.Sprint("e", id)}, &topicpb.Write{Id: id, Body: body})
}

func heartbeat(sequence uint64) message.Message {
	return topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{Sequence: sequence})
}

func send(t *testing.T, c link.Conn, m message.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := c.Send(ctx, m); err != nil {
		t.Fatalf("sending %s: %v", m.Key(), err)
	}
}

func receive(t *testing.T, c link.Conn) message.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	m, err := c.Receive(ctx)
	if err != nil {
		t.Fatalf("receiving: %v", err)
	}
	return m
}

// ended waits for the end of a link and returns why.
func ended(t *testing.T, c link.Conn) *link.CloseError {
	t.Helper()
	select {
	case <-c.Done():
	case <-time.After(patience):
		t.Fatal("the link goes on")
	}
	why, ok := errors.AsType[*link.CloseError](c.Err())
	if !ok {
		t.Fatalf("Err is %v, want a CloseError", c.Err())
	}
	return why
}

func testWhole(t *testing.T, ends Ends) {
	for _, size := range []int{0, 1, 255, 256, 4 << 10, 16<<10 - 1, 16 << 10, 64 << 10, 1 << 20} {
		want := Event(uint64(size), size)
		want.Header.Sync, want.Route.Source, want.Route.Group = true, "a", "b"
		want.Header.ParentID = 7
		send(t, ends.Edge, want)
		got := receive(t, ends.Cloud)
		w, g := want.Content.(*topicpb.Write), got.Content.(*topicpb.Write)
		if w.Id != g.Id || !bytes.Equal(w.Body, g.Body) {
			t.Errorf("content of %d bytes came as another, of %d", size, len(g.Body))
		}
		want.Header.Time = want.Header.Time.Truncate(time.Millisecond).Round(0)
		want.Content, got.Content = nil, nil
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("header and route (-want +got):\n%s", diff)
		}
	}
	// Content that compresses, and a refusal.
	send(t, ends.Cloud, topic.APIResponse.New(message.Resource{}, &topicpb.APIResponse{Code: 200, Body: bytes.Repeat([]byte("skerry "), 100_000)}))
	if got := receive(t, ends.Edge).Content.(*topicpb.APIResponse); len(got.Body) != 700_000 {
		t.Errorf("%d bytes came, want 700000", len(got.Body))
	}
	request := topic.APIRequest.New(message.Resource{}, &topicpb.APIRequest{})
	send(t, ends.Cloud, request.Answer(errors.New("not today")))
	if got := receive(t, ends.Edge); got.Err() == nil || got.Err().Error() != "not today" || got.Header.ParentID != request.Header.ID {
		t.Errorf("the refusal came as %+v", got)
	}
}

func testOrder(t *testing.T, ends Ends) {
	const senders, each = 4, 200
	var wait sync.WaitGroup
	defer wait.Wait()
	for _, c := range []link.Conn{ends.Edge, ends.Cloud} {
		for s := range senders {
			wait.Go(func() {
				for i := range each {
					m := Event(uint64(s*each+i), 10+i*37%3000)
					if err := c.Send(t.Context(), m); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	for _, c := range []link.Conn{ends.Cloud, ends.Edge} {
		var next [senders]uint64
		for range senders * each {
			id := receive(t, c).Content.(*topicpb.Write).Id
			s := id / each
			if id%each != next[s] {
				t.Fatalf("message %d of sender %d came before message %d", id%each, s, next[s])
			}
			next[s]++
		}
	}
}

func testPriority(t *testing.T, pair func(*testing.T, PairOptions) Ends) {
	network := &Network{}
	config := link.Default()
	ends := pair(t, PairOptions{Edge: config, Cloud: config, Network: network})
	send(t, ends.Edge, Event(1, 100))
	receive(t, ends.Cloud)
	network.Hold()
	defer network.Release()
	send(t, ends.Edge, Event(2, 4<<20))
	send(t, ends.Edge, topic.PodStatusWrite.New(message.Resource{}, &topicpb.Write{Id: 3, Body: make([]byte, 100)}))
	send(t, ends.Edge, heartbeat(4))
	network.Release()
	var order []message.Kind
	for range 3 {
		order = append(order, receive(t, ends.Cloud).Route.Kind)
	}
	if order[2] != topic.KindEvent {
		t.Errorf("bulk overtook others: %v", order)
	}
}

func testTooLargeToSend(t *testing.T, ends Ends) {
	if err := ends.Edge.Send(t.Context(), Event(1, link.Default().MaxMessage+1)); !errors.Is(err, link.ErrTooLarge) {
		t.Errorf("Send: %v, want ErrTooLarge", err)
	}
	send(t, ends.Edge, Event(2, link.Default().MaxMessage-64)) // the bound is on the whole content
	if got := receive(t, ends.Cloud).Content.(*topicpb.Write).Id; got != 2 {
		t.Errorf("message %d came", got)
	}
}

func testTooLargeToReceive(t *testing.T, pair func(*testing.T, PairOptions) Ends) {
	for name, m := range map[string]message.Message{
		"plain":      Event(1, 1<<20),
		"compressed": topic.EventWrite.New(message.Resource{}, &topicpb.Write{Body: make([]byte, 1<<20)}), // some hundred bytes on the wire
	} {
		t.Run(name, func(t *testing.T) {
			small, usual := link.Default(), link.Default()
			small.MaxMessage = 64 << 10
			// The closing end waits so long for the peer to read why. A second passes before that
			// on a busy machine, and the peer then sees a network that ended.
			small.CloseTimeout, usual.CloseTimeout = patience, patience
			ends := pair(t, PairOptions{Edge: usual, Cloud: small})
			send(t, ends.Edge, m)
			if why := ended(t, ends.Cloud); why.Code != link.CloseTooLarge || why.Remote {
				t.Errorf("the cloud: %v", why)
			}
			if why := ended(t, ends.Edge); why.Code != link.CloseTooLarge || !why.Remote || !strings.Contains(why.Reason, "bound") {
				t.Errorf("the edge: %v", why)
			}
		})
	}
}

// testManyLarge sends more, in all classes at once, than the peer lets begin at once.
func testManyLarge(t *testing.T, pair func(*testing.T, PairOptions) Ends) {
	config := link.Default()
	config.MaxMessage, config.MaxAssembly = 1<<20, 3<<19
	ends := pair(t, PairOptions{Edge: config, Cloud: config})
	const each = 4
	body := Event(0, 1<<20-64).Content.(*topicpb.Write).Body
	var wait sync.WaitGroup
	defer wait.Wait()
	for _, make := range []func() message.Message{
		func() message.Message { return topic.EventWrite.New(message.Resource{}, &topicpb.Write{Body: body}) },
		func() message.Message {
			return topic.PodStatusWrite.New(message.Resource{}, &topicpb.Write{Body: body})
		},
		func() message.Message {
			return topic.APIRequest.New(message.Resource{}, &topicpb.APIRequest{Body: body})
		},
		func() message.Message { return heartbeat(1) },
	} {
		wait.Go(func() {
			for range each {
				if err := ends.Edge.Send(t.Context(), make()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	large := 0
	for large < 3*each {
		if receive(t, ends.Cloud).Route.Kind != topic.KindHeartbeat { // of which newer ones replace older ones
			large++
		}
	}
}

func testFullQueue(t *testing.T, pair func(*testing.T, PairOptions) Ends) {
	config := link.Default()
	config.SendQueue = link.Bound{Messages: 4, Bytes: 64 << 10}
	config.ReceiveQueue = link.Bound{Messages: 4, Bytes: 64 << 10}
	ends := pair(t, PairOptions{Edge: config, Cloud: config})
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	full := make(chan int)
	go func() {
		sent := 0
		for {
			if err := ends.Edge.Send(ctx, Event(uint64(sent), 1<<20)); err != nil {
				if !errors.Is(err, enough) {
					t.Errorf("Send: %v, want the cause of its context", err)
				}
				break
			}
			sent++
		}
		full <- sent
	}()
	// The peer does not receive: the buffers on the way fill up, then Send waits. It waits for
	// ever, so the test only has to see that it does at all.
	waiting := func() int { return ends.Edge.(link.Meter).Stats().Waiting[topic.Bulk] }
	for stable, last := 0, uint64(0); stable < 20; {
		time.Sleep(5 * time.Millisecond)
		now := ends.Edge.(link.Meter).Stats().Sent[topic.Bulk].Bytes
		if stable++; now != last || waiting() == 0 {
			stable, last = 0, now
		}
	}
	if waiting() > 4 {
		t.Errorf("%d messages wait, the bound is 4", waiting())
	}
	cancel(enough)
	sent := <-full
	for i := range sent {
		if got := receive(t, ends.Cloud).Content.(*topicpb.Write).Id; got != uint64(i) {
			t.Fatalf("message %d came in the place of %d", got, i)
		}
	}
}

func testClose(t *testing.T, pair func(*testing.T) Ends) {
	for name, choose := range map[string]func(Ends) (closer, other link.Conn){
		"by the edge":  func(e Ends) (link.Conn, link.Conn) { return e.Edge, e.Cloud },
		"by the cloud": func(e Ends) (link.Conn, link.Conn) { return e.Cloud, e.Edge },
	} {
		t.Run(name, func(t *testing.T) {
			closer, other := choose(pair(t))
			received := make(chan error)
			go func() {
				_, err := other.Receive(t.Context())
				received <- err
			}()
			send(t, closer, heartbeat(1))
			if err := <-received; err != nil {
				t.Fatal(err)
			}
			if err := closer.Close(link.CloseOverloaded, "retry-after=7"); err != nil {
				t.Fatal(err)
			}
			if err := closer.Close(link.CloseInternal, "again"); err != nil {
				t.Fatal(err)
			}
			for c, remote := range map[link.Conn]bool{closer: false, other: true} {
				why := ended(t, c)
				if why.Code != link.CloseOverloaded || why.Reason != "retry-after=7" || why.Remote != remote {
					t.Errorf("ended by %v", why)
				}
				if _, ok := errors.AsType[*link.CloseError](c.Send(t.Context(), heartbeat(2))); !ok {
					t.Error("Send goes on")
				}
				if _, err := c.Receive(t.Context()); !errors.Is(err, error(why)) {
					t.Errorf("Receive: %v", err)
				}
			}
		})
	}
	t.Run("long reason", func(t *testing.T) {
		ends := pair(t)
		reason := strings.Repeat("ä", 300)
		if err := ends.Cloud.Close(link.CloseForbidden, reason); err != nil {
			t.Fatal(err)
		}
		why := ended(t, ends.Edge)
		if why.Code != link.CloseForbidden || !strings.HasPrefix(reason, why.Reason) || len(why.Reason) < 100 {
			t.Errorf("ended by %v", why)
		}
	})
}

// quick is a Config that notices silence soon.
func quick() link.Config {
	c := link.Default()
	c.Keepalive, c.IdleTimeout, c.CloseTimeout = 100*time.Millisecond, time.Second, 100*time.Millisecond
	return c
}

func testHalfOpen(t *testing.T, pair func(*testing.T, PairOptions) Ends) {
	network := &Network{}
	ends := pair(t, PairOptions{Edge: quick(), Cloud: quick(), Network: network})
	send(t, ends.Edge, heartbeat(1))
	receive(t, ends.Cloud)
	network.Cut()
	for _, c := range []link.Conn{ends.Edge, ends.Cloud} {
		if why := ended(t, c); why.Code != link.CloseTimeout || why.Remote {
			t.Errorf("ended by %v", why)
		}
	}
}

func testStall(t *testing.T, pair func(*testing.T, PairOptions) Ends) {
	config := quick()
	config.ReceiveQueue = link.Bound{Messages: 2, Bytes: 64 << 10}
	ends := pair(t, PairOptions{Edge: config, Cloud: config})
	for i := range uint64(1000) {
		if err := ends.Edge.Send(t.Context(), Event(i, 1<<20)); err != nil { // the cloud never receives
			break
		}
	}
	if why := ended(t, ends.Edge); why.Code != link.CloseTimeout || why.Remote {
		t.Errorf("the edge ended by %v", why)
	}
}

func testIdle(t *testing.T, pair func(*testing.T, PairOptions) Ends) {
	config := quick()
	config.Keepalive, config.IdleTimeout = 200*time.Millisecond, 3*time.Second // a busy machine must not look like silence
	ends := pair(t, PairOptions{Edge: config, Cloud: config})
	select {
	case <-ends.Edge.Done():
	case <-ends.Cloud.Done():
	case <-time.After(2 * config.IdleTimeout): // it must live that long: there is no way round waiting
	}
	if err := errors.Join(ends.Edge.Err(), ends.Cloud.Err()); err != nil {
		t.Fatal(err)
	}
	if s := ends.Cloud.(link.Meter).Stats(); time.Since(s.LastHeard) > config.IdleTimeout {
		t.Errorf("last heard %v ago", time.Since(s.LastHeard))
	}
	send(t, ends.Cloud, heartbeat(1))
	receive(t, ends.Edge)
}

func testConcurrent(t *testing.T, pair func(*testing.T) Ends) {
	for range 5 {
		ends := pair(t)
		var wait sync.WaitGroup
		for _, c := range []link.Conn{ends.Edge, ends.Cloud} {
			for s := range 4 {
				wait.Go(func() {
					for i := uint64(0); ; i++ {
						m := heartbeat(i)
						if s%2 == 0 {
							m = Event(i, 5000)
						}
						if c.Send(t.Context(), m) != nil {
							return
						}
					}
				})
			}
			wait.Go(func() {
				for i := 0; ; i++ {
					if _, err := c.Receive(t.Context()); err != nil {
						return
					}
					if i == 100 {
						wait.Go(func() { _ = c.Close(link.CloseShutdown, "enough") })
						wait.Go(func() { _ = c.Close(link.CloseReplaced, "enough") })
					}
				}
			})
		}
		wait.Wait()
		ended(t, ends.Edge)
		ended(t, ends.Cloud)
	}
}

func testInfo(t *testing.T, ends Ends) {
	for name, test := range map[string]struct {
		info link.Info
		want *x509.Certificate
	}{
		"the cloud sees the edge": {ends.Cloud.Info(), ends.EdgeCertificate},
		"the edge sees the cloud": {ends.Edge.Info(), ends.CloudCertificate},
	} {
		if test.info.Peer == nil || !test.info.Peer.Equal(test.want) {
			t.Errorf("%s as another", name)
		}
		if test.info.Local == nil || test.info.Remote == nil || test.info.Since.IsZero() || test.info.Transport == "" {
			t.Errorf("%s: info is not complete: %+v", name, test.info)
		}
	}
	if a, b := ends.Edge.Info().Transport, ends.Cloud.Info().Transport; a != b {
		t.Errorf("transports %s and %s", a, b)
	}
}

func testStats(t *testing.T, ends Ends) {
	send(t, ends.Edge, Event(1, 100_000))
	send(t, ends.Edge, heartbeat(1))
	receive(t, ends.Cloud)
	receive(t, ends.Cloud)
	got := ends.Cloud.(link.Meter).Stats().Received
	if got[topic.Bulk].Messages != 1 || got[topic.Urgent].Messages != 1 || got[topic.Bulk].Bytes < 100_000 {
		t.Errorf("received %+v", got)
	}
}

// Once an end has the other's announcement, its messages use the dictionary that both have.
func testDictionary(t *testing.T, ends Ends) {
	patch := []byte(`{"status":{"$setElementOrder/conditions":[{"type":"MemoryPressure"},{"type":"DiskPressure"},{"type":"PIDPressure"},{"type":"Ready"}],"conditions":[]}}` + strings.Repeat(" ", 200))
	event := topic.EventWrite.New(message.Resource{}, &topicpb.Write{Id: 1, Body: patch})
	for name, e := range map[string]struct{ from, to link.Conn }{"up": {ends.Edge, ends.Cloud}, "down": {ends.Cloud, ends.Edge}} {
		size := func() uint64 {
			before := e.to.(link.Meter).Stats().Received[topic.Bulk].Bytes
			send(t, e.from, event)
			m := receive(t, e.to)
			if w, err := topic.EventWrite.Content(m); err != nil || !bytes.Equal(w.GetBody(), patch) {
				t.Errorf("%s: it came as %v, %v", name, m.Content, err)
			}
			return e.to.(link.Meter).Stats().Received[topic.Bulk].Bytes - before
		}
		send(t, e.to, heartbeat(1))
		receive(t, e.from)
		size() // announces its sender's dictionaries
		with, without := size(), plainSize(t, event)
		if with+50 > without {
			t.Errorf("%s: %d bytes, without a dictionary it is %d", name, with, without)
		}
	}
}

func plainSize(t *testing.T, m message.Message) uint64 {
	t.Helper()
	_, data, err := link.NewCodec(topic.NewTable(), link.Default()).Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	return uint64(len(data))
}

// noGoroutines waits until no goroutine of a link is left.
func noGoroutines(t *testing.T) {
	t.Helper()
	var left string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		stacks := make([]byte, 1<<20)
		left = ""
		for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(stack, "common/link.(*conn).") {
				left += stack + "\n\n"
			}
		}
		if left == "" {
			return
		}
	}
	t.Errorf("goroutines are left:\n%s", left)
}
