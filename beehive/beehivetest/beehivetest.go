// Package beehivetest runs a module on a real bus, with peers that the test plays.
//
// It owns the life of the bus in a test: it ends with the test at the latest. It does not refuse
// anything that beehive doesn't. A Bench's methods may be called by many goroutines at once. It
// works inside a testing/synctest bubble too, with the bubble's T.
package beehivetest

import (
	"context"
	"testing"
	"time"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
)

// patience is how long a test waits for a message before it fails: long enough for any machine,
// never used up by a test that passes.
const patience = 30 * time.Second

// Peer is a module that the test plays.
type Peer struct {
	Name   message.Name
	Groups []message.Group
	// Mailbox is the peer's bound, as in beehive.Entry.
	Mailbox int
	// Serve, if set, is the peer's Run once it is ready. Where it is nil the test uses the peer's
	// port itself: Bench.Port.
	Serve func(ctx context.Context, port *beehive.Port) error
}

// Bench is a bus with the modules under test and their peers.
type Bench struct {
	Runner *beehive.Runner

	t      testing.TB
	cancel context.CancelFunc
	done   chan struct{}
	err    error // of Run; set before done is closed
	peers  map[message.Name]*peer
}

// peer makes a Peer a module.
type peer struct {
	Peer
	port    chan *beehive.Port
	running chan struct{} // closed when it runs
}

func (p *peer) Name() message.Name { return p.Peer.Name }

func (p *peer) Run(ctx context.Context, port *beehive.Port) error {
	port.Ready()
	close(p.running)
	if p.Serve != nil {
		return p.Serve(ctx, port)
	}
	p.port <- port
	<-ctx.Done()
	return nil
}

// Run starts the peers, then the modules of entries, on a bus of their own. It returns when the
// peers run. All are stopped, in reverse order, when the test ends or calls Stop; a module that
// fails, or does not stop, fails a test that doesn't call Stop itself.
func Run(t testing.TB, peers []Peer, entries ...beehive.Entry) *Bench {
	t.Helper()
	b := &Bench{t: t, done: make(chan struct{}), peers: map[message.Name]*peer{}}
	var wiring []beehive.Entry
	for _, p := range peers {
		module := &peer{Peer: p, port: make(chan *beehive.Port, 1), running: make(chan struct{})}
		b.peers[p.Name] = module
		wiring = append(wiring, beehive.Entry{Module: module, Groups: p.Groups, Mailbox: p.Mailbox})
	}
	runner, err := beehive.NewRunner(beehive.Config{}, append(wiring, entries...))
	if err != nil {
		t.Fatal(err)
	}
	b.Runner = runner
	// Not t.Context(): that ends before the clean-ups that other parts of the test registered, and
	// they may still need the bus.
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	go func() {
		defer close(b.done)
		b.err = runner.Run(ctx)
	}()
	t.Cleanup(func() {
		if ctx.Err() != nil {
			return // the test has called Stop and seen the error
		}
		if err := b.Stop(); err != nil {
			t.Errorf("running the bus: %v", err)
		}
	})
	for _, p := range b.peers {
		select {
		case <-p.running:
		case <-b.done:
			t.Fatalf("the bus stopped before its peers ran: %v", b.err)
		}
	}
	return b
}

// Stop stops everything and returns the error of beehive.Runner.Run. It may be called again.
func (b *Bench) Stop() error {
	b.cancel()
	<-b.done
	return b.err
}

// Done is closed when the bus has stopped, by Stop or because a module failed.
func (b *Bench) Done() <-chan struct{} { return b.done }

// Port is the port of a peer without Serve.
func (b *Bench) Port(name message.Name) *beehive.Port {
	b.t.Helper()
	p, ok := b.peers[name]
	if !ok || p.Serve != nil {
		b.t.Fatalf("%s is not a peer that the test plays", name)
	}
	select {
	case port := <-p.port:
		p.port <- port // for the next call
		return port
	case <-b.done:
		b.t.Fatalf("the bus stopped before %s ran: %v", name, b.err)
	}
	return nil
}

// Receive returns the next message that a peer gets, and fails the test without one.
func (b *Bench) Receive(name message.Name) message.Message {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	m, err := b.Port(name).Receive(ctx)
	if err != nil {
		b.t.Fatalf("%s: %v", name, err)
	}
	return m
}

// Await waits until a module is in a state, and fails the test when it does not get there.
func (b *Bench) Await(name message.Name, state beehive.State) beehive.ModuleHealth {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		var last beehive.ModuleHealth
		for _, h := range b.Runner.Health() {
			if h.Name == name {
				last = h
			}
		}
		if last.State == state {
			return last
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			b.t.Fatalf("%s is %q, want %q; last error: %s", name, last.State, state, last.LastError)
		}
	}
}
