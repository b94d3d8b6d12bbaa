package cloudhub_test

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// idle is a link.Conn that costs almost no memory: it sends its hello and then no more messages.
type idle struct {
	info    link.Info
	hello   chan message.Message
	ctx     context.Context
	end     func()
	welcome func()
}

func (c *idle) Send(context.Context, message.Message) error { c.welcome(); return nil }

func (c *idle) Receive(ctx context.Context) (message.Message, error) {
	select {
	case m := <-c.hello:
		return m, nil
	case <-c.Done():
		return message.Message{}, c.Err()
	case <-ctx.Done():
		return message.Message{}, ctx.Err()
	}
}

func (c *idle) Poll() (message.Message, bool) { return message.Message{}, false }
func (c *idle) Notify(_, ended func())        { context.AfterFunc(c.ctx, ended) }

func (c *idle) Close(link.CloseCode, string) error {
	c.end()
	return nil
}

func (c *idle) Done() <-chan struct{} { return c.ctx.Done() }
func (c *idle) Err() error            { return &link.CloseError{Code: link.CloseShutdown} }
func (c *idle) Info() link.Info       { return c.info }

// BenchmarkIdleSession measures the hub's own memory for an idle session, links and parts not
// counted.
func BenchmarkIdleSession(b *testing.B) {
	const sessions = 2000
	cert := linktest.NewAuthority(b).Node(b, "edge-0").Leaf
	l := &listener{conns: make(chan link.Conn), closed: make(chan struct{})}
	h := cloudhub.New(cloudhub.Config{DrainSpread: time.Millisecond}, []link.Listener{l}, []cloudhub.Part{part{}})
	ctx, stop := context.WithCancel(klog.NewContext(b.Context(), klog.New(nil)))
	done := make(chan error)
	go func() { done <- h.Run(ctx) }()
	memory := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	before := memory()
	var open sync.WaitGroup
	for i := range sessions {
		own := *cert // each node has its own name
		own.Subject.CommonName = fmt.Sprintf("system:node:edge-%d", i)
		own.Subject.Names = append(own.Subject.Names[:0:0], cert.Subject.Names...)
		open.Add(1)
		c := &idle{
			info:  link.Info{Transport: linktest.Memory, Remote: &net.TCPAddr{}, Peer: &own, Since: time.Now()},
			hello: make(chan message.Message, 1), welcome: open.Done,
		}
		c.ctx, c.end = context.WithCancel(b.Context())
		c.hello <- topic.Hello.New(message.Resource{}, &topicpb.Hello{Protocol: topic.Protocol, Epoch: 1})
		l.conns <- c
	}
	open.Wait()
	for len(h.Sessions()) < sessions {
		runtime.Gosched()
	}
	b.ReportMetric(float64(memory()-before)/sessions, "B/session")
	b.ReportMetric(0, "ns/op")
	stop()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}
