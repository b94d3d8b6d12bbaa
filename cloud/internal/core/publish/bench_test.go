package publish_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub/hubtest"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/publish"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// sinkhole is an edge that acknowledges all changes and stores none of them.
type sinkhole struct {
	hubtest.Session
	mux    *message.Mux
	synced atomic.Int64
	got    chan struct{}
}

func (e *sinkhole) Send(ctx context.Context, m message.Message) error {
	s, ok := m.Content.(*topicpb.State)
	if !ok {
		return nil
	}
	e.synced.Add(int64(len(s.Synced)))
	if e.got != nil && len(s.Changes) > 0 {
		e.got <- struct{}{}
	}
	return e.mux.Dispatch(ctx, topic.StateAck.New(message.Resource{}, &topicpb.StateAck{Sequence: s.Sequence}))
}

// kubeletInterests are the interests that a kubelet's watches open.
func kubeletInterests(node string) []*topicpb.Interest {
	of := func(id uint64, group, resource, fields string) *topicpb.Interest {
		return &topicpb.Interest{Id: id, Resource: &topicpb.Resource{Group: group, Version: "v1", Resource: resource}, FieldSelector: fields}
	}
	return []*topicpb.Interest{
		of(1, "", "pods", "spec.nodeName="+node), of(2, "", "nodes", "metadata.name="+node), of(3, "", "services", "spec.clusterIP!=None"),
		of(4, "node.k8s.io", "runtimeclasses", ""), of(5, "storage.k8s.io", "csidrivers", ""), of(6, "storage.k8s.io", "csinodes", "metadata.name="+node),
		dependencies(7),
	}
}

func (e *sinkhole) open(b *testing.B, p *publish.Publisher) {
	b.Helper()
	e.mux = message.NewMux()
	service := p.Attach(e, e.mux)
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- cloudhub.Serve(ctx, service) }()
	b.Cleanup(func() { cancel(); <-done })
	err := e.mux.Dispatch(ctx, topic.Interests.New(message.Resource{}, &topicpb.Interests{Interests: kubeletInterests(string(e.Name)), Unnamed: true}))
	if err != nil {
		b.Fatal(err)
	}
	for e.synced.Load() < 7 {
		time.Sleep(time.Millisecond)
	}
}

func filled(b *testing.B, nodes int) *world {
	b.Helper()
	c := newWorld()
	for _, p := range kubeletInterests("x") {
		if p.Resource == nil {
			continue
		}
		if err := c.store(gvrOf(p.Resource)).Replace(nil); err != nil {
			b.Fatal(err)
		}
	}
	for i := range nodes {
		for j := range 10 {
			p := pod(fmt.Sprintf("p%d-%d", i, j), fmt.Sprintf("edge%d", i), "kube-root-ca.crt")
			c.stamp(p)
			if err := c.store(kube.Pods).Put(p); err != nil {
				b.Fatal(err)
			}
		}
	}
	return c
}

// BenchmarkIdleSession measures how much memory the way down of an idle node takes, with ten pods:
// B/session, without the objects, which all share.
func BenchmarkIdleSession(b *testing.B) {
	const sessions = 1000
	for b.Loop() {
		c := filled(b, sessions)
		p := publish.New(c, c, c, publish.DefaultQuotas())
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		all := make([]*sinkhole, sessions)
		for i := range all {
			all[i] = &sinkhole{Session: hubtest.Session{Name: types.NodeName(fmt.Sprintf("edge%d", i))}}
			all[i].open(b, p)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapInuse-before.HeapInuse)/sessions, "heap-B/session")
		b.ReportMetric(float64(after.StackInuse-before.StackInuse)/sessions, "stack-B/session")
		runtime.KeepAlive(all)
	}
}

// BenchmarkPodChange is the time from a change in the store to its State at the link, among a
// thousand other sessions.
func BenchmarkPodChange(b *testing.B) {
	c := filled(b, 1000)
	p := publish.New(c, c, c, publish.DefaultQuotas())
	for i := range 999 {
		(&sinkhole{Session: hubtest.Session{Name: types.NodeName(fmt.Sprintf("edge%d", i+1))}}).open(b, p)
	}
	e := &sinkhole{Session: hubtest.Session{Name: "edge0"}, got: make(chan struct{}, 1000)}
	e.open(b, p)
	for len(e.got) > 0 {
		<-e.got
	}
	for b.Loop() {
		o := pod("p0-0", "edge0", "kube-root-ca.crt")
		c.stamp(o)
		if err := c.store(kube.Pods).Put(o); err != nil {
			b.Fatal(err)
		}
		<-e.got
	}
}
