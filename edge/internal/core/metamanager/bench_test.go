package metamanager_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
)

// offlineEdge is an edge that holds pods and has lost its link.
func offlineEdge(b *testing.B, pods int) *edge {
	b.Helper()
	c := newCloud(b)
	e := newEdge(b, c, metamanager.Config{ReportEvents: true})
	for i := range pods {
		c.set(ref("pods", "default", fmt.Sprint(i)), pod())
	}
	c.link()
	e.holdPods()
	c.cut()
	for e.Linked() {
		runtime.Gosched()
	}
	return e
}

// BenchmarkWrite measures the sequential writes of one client on a disk without latency.
func BenchmarkWrite(b *testing.B) {
	b.Run("status", func(b *testing.B) { // merged into the one that waits
		e := offlineEdge(b, 1)
		for i := 0; b.Loop(); i++ {
			if err := e.patchStatus("0", fmt.Sprint(i)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("event", func(b *testing.B) {
		e := offlineEdge(b, 1)
		for i := 0; b.Loop(); i++ {
			if err := e.event(fmt.Sprint(i), 1); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("report", func(b *testing.B) {
		e := offlineEdge(b, 1)
		for i := 0; b.Loop(); i++ {
			if err := e.Report(b.Context(), ref("pods", "default", "0"), "", fmt.Append(nil, i)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkDeliver is objects that the cloud changes, one after another, until a watch sees them.
func BenchmarkDeliver(b *testing.B) {
	c := newCloud(b)
	e := newEdge(b, c, metamanager.Config{})
	c.set(ref("pods", "default", "a"), pod())
	c.link()
	e.holdPods()
	w, err := e.Watch(b.Context(), ownPods(), metamanager.WatchOptions{Caller: metamanager.Caller{Kubelet: true}})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Stop()
	<-w.Events()
	for b.Loop() {
		c.set(ref("pods", "default", "a"), pod())
		<-w.Events()
	}
}
