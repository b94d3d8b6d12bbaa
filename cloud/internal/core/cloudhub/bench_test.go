package cloudhub_test

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// bench is a hub in a synctest bubble, with links in memory.
type bench struct {
	t         *testing.T
	hub       *cloudhub.Hub
	authority *linktest.Authority
	listener  *listener
	stop      context.CancelFunc
	done      chan struct{}
	err       error // of Run; set before done is closed
}

func newBench(t *testing.T, config cloudhub.Config, parts ...cloudhub.Part) *bench {
	t.Helper()
	config.Instance, config.Version = "cloud-1", "v1.2.3"
	l := &listener{conns: make(chan link.Conn), closed: make(chan struct{})}
	ctx, stop := context.WithCancel(klog.NewContext(context.Background(), klog.New(nil))) // the tests don't read the log
	b := &bench{
		t: t, hub: cloudhub.New(config, []link.Listener{l}, parts), authority: linktest.NewAuthority(t), listener: l, stop: stop,
		done: make(chan struct{}),
	}
	go func() {
		defer close(b.done)
		b.err = b.hub.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-b.done
	})
	return b
}

// end stops the hub and returns Run's result.
func (b *bench) end() error {
	b.stop()
	<-b.done
	return b.err
}

// listener accepts the connections of the test.
type listener struct {
	conns  chan link.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *listener) Accept(ctx context.Context) (link.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *listener) Addr() net.Addr { return &net.TCPAddr{Port: 10000} }

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// edge is the other end of a link.
type edge struct {
	t    *testing.T
	conn link.Conn
}

// dial gives the hub a link of a node.
func (b *bench) dial(node string) *edge {
	b.t.Helper()
	return b.dialAs(b.authority.Node(b.t, node).Leaf)
}

func (b *bench) dialAs(cert *x509.Certificate) *edge {
	b.t.Helper()
	e, cloud := linktest.Pipe(b.t, linktest.PipeOptions{Edge: cert})
	b.listener.conns <- cloud
	return &edge{b.t, e}
}

// open dials and opens a session.
func (b *bench) open(node string, epoch uint64) *edge {
	b.t.Helper()
	e := b.dial(node)
	e.hello(epoch)
	e.welcomed()
	return e
}

func (e *edge) send(m message.Message) {
	e.t.Helper()
	if err := e.conn.Send(context.Background(), m); err != nil {
		e.t.Fatalf("sending %s: %v", m.Key(), err)
	}
}

func (e *edge) hello(epoch uint64) {
	e.t.Helper()
	e.send(topic.Hello.New(message.Resource{}, &topicpb.Hello{
		Protocol: topic.Protocol, Version: "v1.0.0", BootId: "boot", Epoch: epoch, KeepaliveMillis: 10_000,
	}))
}

func (e *edge) receive() message.Message {
	e.t.Helper()
	m, err := e.conn.Receive(context.Background())
	if err != nil {
		e.t.Fatalf("receiving: %v", err)
	}
	return m
}

func (e *edge) welcomed() *topicpb.Welcome {
	e.t.Helper()
	welcome, err := topic.Welcome.Content(e.receive())
	if err != nil {
		e.t.Fatal(err)
	}
	synctest.Wait() // the parts are attached after the welcome
	return welcome
}

// ended waits for the end of the link and returns it.
func (e *edge) ended() *link.CloseError {
	e.t.Helper()
	<-e.conn.Done()
	end, ok := errors.AsType[*link.CloseError](e.conn.Err())
	if !ok {
		e.t.Fatalf("the link ended with %v", e.conn.Err())
	}
	return end
}

// live reports whether the link is open.
func (e *edge) live() bool {
	synctest.Wait()
	return e.conn.Err() == nil
}

func (e *edge) heartbeat(sequence uint64, alive bool) {
	e.t.Helper()
	e.send(topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{Sequence: sequence, KubeletAlive: alive}))
}

// beat sends heartbeats and takes their answers until the link ends.
func (e *edge) beat() {
	for e.conn.Send(context.Background(), topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{})) == nil {
		if _, err := e.conn.Receive(context.Background()); err != nil {
			return
		}
		select {
		case <-time.After(10 * time.Second):
		case <-e.conn.Done():
			return
		}
	}
}

// part is a Part made of functions, any of which may be nil.
type part struct {
	attach func(s cloudhub.Session, mux *message.Mux)
	run    func(ctx context.Context, s cloudhub.Session) error
	stop   func(s cloudhub.Session)
}

func (p part) Attach(s cloudhub.Session, mux *message.Mux) cloudhub.Service {
	if p.attach != nil {
		p.attach(s, mux)
	}
	if p.run == nil && p.stop == nil {
		return nil
	}
	r := &running{part: p, session: s}
	r.loop = cloudhub.NewLoop(func(ctx context.Context) error {
		if p.run == nil {
			return nil
		}
		return p.run(ctx, s)
	})
	r.loop.Signal()
	return r
}

// running is the Service of a part.
type running struct {
	part    part
	session cloudhub.Session
	loop    *cloudhub.Loop
}

func (r *running) Start(ctx context.Context, fail func(error)) { r.loop.Start(ctx, fail) }

func (r *running) Stop() {
	r.loop.Stop()
	if r.part.stop != nil {
		r.part.stop(r.session)
	}
}
