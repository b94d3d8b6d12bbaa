package edgehub_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/edgehub"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
)

// network is a link.Dialer of which the test scripts the result of each dial; it records the dial
// times.
type network struct {
	t     testing.TB
	conns chan link.Conn // the cloud's ends

	mu    sync.Mutex
	dial  func(address string) error // nil: connected; errHang: no answer
	dials []dial
	last  net.Conn // of the last link
}

type dial struct {
	At      time.Duration // since the network was made
	Address string
}

var errHang = errors.New("no answer")

func (n *network) set(f func(address string) error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dial = f
}

func (n *network) Dial(ctx context.Context, address string) (link.Conn, error) {
	n.mu.Lock()
	n.dials = append(n.dials, dial{time.Since(epoch), address})
	f := n.dial
	n.mu.Unlock()
	if f != nil {
		if err := f(address); errors.Is(err, errHang) {
			<-ctx.Done()
			return nil, ctx.Err()
		} else if err != nil {
			return nil, err
		}
	}
	edge, cloud := linktest.Pipe(n.t, linktest.PipeOptions{Cloud: &x509.Certificate{}, WrapEdge: func(c net.Conn) net.Conn {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.last = c
		return c
	}})
	select {
	case n.conns <- cloud:
		return edge, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// sever ends the last link without a close frame, as a reset of its connection does.
func (n *network) sever() {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.last.Close(); err != nil {
		n.t.Fatal(err)
	}
}

// take returns the dials so far and forgets them.
func (n *network) take() []dial {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	dials := n.dials
	n.dials = nil
	return dials
}

// epoch is when every synctest bubble begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// epochs is a edgehub.Epochs in memory.
type epochs struct {
	mu   sync.Mutex
	last uint64
	err  error
}

func (e *epochs) NextEpoch(context.Context) (uint64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return 0, e.err
	}
	e.last++
	return e.last, nil
}

// bench is an edgehub in a synctest bubble, a network, and a peer that plays metamanager.
type bench struct {
	t       *testing.T
	hub     *edgehub.Hub
	network *network
	epochs  *epochs
	wake    chan struct{}
	port    *beehive.Port // metamanager's
	stop    context.CancelFunc
	done    chan struct{}
	err     error

	mu    sync.Mutex
	alive bool
}

func newBench(t *testing.T, change func(*edgehub.Config)) *bench {
	t.Helper()
	b := &bench{
		t: t, network: &network{t: t, conns: make(chan link.Conn)}, epochs: &epochs{last: 10}, wake: make(chan struct{}), done: make(chan struct{}),
	}
	config := edgehub.Config{
		Servers: []string{"cloud:10000"}, Dialer: b.network, Epochs: b.epochs, Wake: b.wake, Version: "v1.0.0", BootID: "boot",
		Alive: func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.alive
		},
	}
	if change != nil {
		change(&config)
	}
	h, err := edgehub.New(config)
	if err != nil {
		t.Fatal(err)
	}
	b.hub = h
	meta := &metamanager{port: make(chan *beehive.Port, 1)}
	runner, err := beehive.NewRunner(beehive.Config{}, []beehive.Entry{
		{Module: meta, Groups: []message.Group{linkstate.Group}}, {Module: h},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(klog.NewContext(context.Background(), klog.New(nil)))
	b.stop = stop
	go func() {
		defer close(b.done)
		b.err = runner.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-b.done
		if b.err != nil {
			t.Error(b.err)
		}
	})
	b.port = <-meta.port
	return b
}

// metamanager is played by the test.
type metamanager struct{ port chan *beehive.Port }

func (*metamanager) Name() message.Name { return "metamanager" }

func (m *metamanager) Run(ctx context.Context, port *beehive.Port) error {
	port.Ready()
	m.port <- port
	<-ctx.Done()
	time.Sleep(100 * time.Millisecond) // for the messages in the mailbox
	return nil
}

func (b *bench) setAlive(alive bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.alive = alive
}

// cloud is the other end of the next link.
func (b *bench) cloud() *cloud {
	b.t.Helper()
	select {
	case c := <-b.network.conns:
		return &cloud{b.t, c}
	case <-time.After(time.Hour):
		b.t.Fatal("no link within an hour")
	}
	return nil
}

// open takes the next link, opens its session, and takes metamanager's message on it and the first
// heartbeat.
func (b *bench) open() *cloud {
	b.t.Helper()
	c := b.cloud()
	c.welcome()
	b.up()
	c.heartbeat()
	return c
}

// next returns the next message for metamanager.
func (b *bench) next() message.Message {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	m, err := b.port.Receive(ctx)
	if err != nil {
		b.t.Fatalf("metamanager hears nothing: %v", err)
	}
	return m
}

func (b *bench) up() linkstate.Link {
	b.t.Helper()
	up, err := linkstate.Up.Content(b.next())
	if err != nil {
		b.t.Fatal(err)
	}
	return up
}

func (b *bench) down() linkstate.Loss {
	b.t.Helper()
	loss, err := linkstate.Down.Content(b.next())
	if err != nil {
		b.t.Fatal(err)
	}
	return loss
}

func (b *bench) send(m message.Message) {
	b.t.Helper()
	if err := b.port.Send(context.Background(), edgehub.Name, m); err != nil {
		b.t.Fatal(err)
	}
}

// cloud is a cloudcore played by the test.
type cloud struct {
	t    *testing.T
	conn link.Conn
}

func (c *cloud) receive() message.Message {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	m, err := c.conn.Receive(ctx)
	if err != nil {
		c.t.Fatalf("the cloud receives nothing: %v", err)
	}
	return m
}

func (c *cloud) send(m message.Message) {
	c.t.Helper()
	if err := c.conn.Send(context.Background(), m); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cloud) welcome() *topicpb.Hello {
	c.t.Helper()
	m := c.receive()
	hello, err := topic.Hello.Content(m)
	if err != nil {
		c.t.Fatal(err)
	}
	c.send(m.Answer(&topicpb.Welcome{
		Protocol: topic.Protocol, Version: "v2.0.0", Instance: "cloud-1", UnixMillis: time.Now().Add(90 * time.Second).UnixMilli(),
	}))
	return hello
}

// heartbeat receives one and answers it.
func (c *cloud) heartbeat() *topicpb.Heartbeat {
	c.t.Helper()
	m := c.receive()
	beat, err := topic.Heartbeat.Content(m)
	if err != nil || m.Key() != topic.Heartbeat.Key() {
		c.t.Fatalf("%s instead of a heartbeat: %v", m.Key(), err)
	}
	c.send(m.Answer(beat))
	return beat
}

// keep answers heartbeats until the link or ctx ends.
func (c *cloud) keep(ctx context.Context) {
	for {
		m, err := c.conn.Receive(ctx)
		if err != nil {
			return
		}
		if m.Key() == topic.Heartbeat.Key() {
			if c.conn.Send(ctx, m.Answer(m.Content)) != nil {
				return
			}
		}
	}
}

func (c *cloud) close(code link.CloseCode, reason string) {
	c.t.Helper()
	if err := c.conn.Close(code, reason); err != nil {
		c.t.Fatal(err)
	}
}

// ended waits for the end of the link and returns it.
func (c *cloud) ended() *link.CloseError {
	c.t.Helper()
	<-c.conn.Done()
	end, ok := errors.AsType[*link.CloseError](c.conn.Err())
	if !ok {
		c.t.Fatal(c.conn.Err())
	}
	return end
}

func request(path string) message.Message {
	return topic.APIRequest.New(message.Resource{}, &topicpb.APIRequest{Method: "GET", Path: path})
}

func path(i int) string { return fmt.Sprintf("/api/v1/nodes/%d", i) }

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
