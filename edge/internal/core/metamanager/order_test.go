package metamanager_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
)

// A write is sent and accepted, and its result has reached the edge when the link is lost; before
// the result is applied the client writes again, and the writes are merged. The result belongs to
// the sent write only: the merged one is sent on the next link.
func TestOrder_07_MergedWhileSentGoesUpAgain(t *testing.T) {
	type write func(e *edge, n int) error
	for name, test := range map[string]struct {
		write   write
		arrived func(c *cloud) []string
	}{
		"pod status": {
			func(e *edge, n int) error { return e.patchStatus("a", fmt.Sprint(n)) },
			func(c *cloud) []string { return c.effects[ref("pods", "default", "a").String()] },
		},
		"event": {
			func(e *edge, n int) error {
				if n == 1 {
					return e.event("x", 1)
				}
				return e.repeatEvent("x", n)
			},
			func(c *cloud) []string { return c.effects[ref("events", "default", "x").String()] },
		},
		"report": {
			func(e *edge, n int) error {
				return e.Report(context.Background(), ref("pods", "default", "a"), "", fmt.Append(nil, n))
			},
			func(c *cloud) []string { return c.effects["report "+ref("pods", "default", "a").String()] },
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				c := newCloud(t)
				var late atomic.Bool
				applied := make(chan struct{})
				e := newEdge(t, c, metamanager.Config{ReportEvents: true, At: func(p metamanager.Point) {
					if p == metamanager.PointReceived && late.Load() {
						<-applied
					}
				}})
				c.set(ref("pods", "default", "a"), pod())
				c.link()
				e.holdPods()
				synctest.Wait()

				late.Store(true)
				if err := test.write(e, 1); err != nil {
					t.Fatal(err)
				}
				time.Sleep(20 * time.Millisecond) // sent and accepted; its result has left the bus
				c.cut()
				synctest.Wait()
				if err := test.write(e, 2); err != nil {
					t.Fatal(err)
				}
				late.Store(false)
				close(applied)
				synctest.Wait()
				c.link()
				synctest.Wait()

				if got := test.arrived(c); len(got) == 0 || got[len(got)-1] != "2" {
					t.Errorf("the cloud has %v, want 2 last", got)
				}
				if st := e.Status().Outbox; len(st.Waiting) != 0 || st.InFlight != 0 {
					t.Errorf("outbox: %+v", st)
				}
			})
		})
	}
}

// Repeated writes of the same object without a link take no more memory than a single write. The
// scenario's hundred thousand are made with SKERRY_LONG=1.
func TestOrder_13_ManyChangesOfflineTakeNoMoreMemory(t *testing.T) {
	const pods = 50
	changes := 20_000
	if os.Getenv("SKERRY_LONG") != "" {
		changes = 100_000
	}
	c := newCloud(t)
	e := newEdge(t, c, metamanager.Config{ReportEvents: true})
	for i := range pods {
		c.set(ref("pods", "default", fmt.Sprint(i)), pod())
	}
	c.link()
	e.holdPods()
	c.cut()
	for e.Linked() {
		runtime.Gosched()
	}
	write := func(from, to int) {
		var g errgroup.Group
		for p := range pods { // concurrently, as a kubelet's workers: one sync serves many
			g.Go(func() error {
				for i := from + p; i < to; i += pods {
					if err := e.patchStatus(fmt.Sprint(p), fmt.Sprintf("%08d", i)); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	memory := func() int {
		runtime.GC()
		runtime.GC() // objects kept by finalizers
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	write(0, changes/10)
	before, disk := memory(), e.Status().Store.Bytes
	write(changes/10, changes)
	if grown := memory() - before; grown > 256<<10 {
		t.Errorf("%d changes more take %d bytes more memory", changes-changes/10, grown)
	}
	if grown := e.Status().Store.Bytes - disk; grown > 0 {
		t.Errorf("%d changes more take %d bytes more of the disk", changes-changes/10, grown)
	}

	c.link()
	for len(e.Status().Outbox.Waiting) > 0 {
		runtime.Gosched()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	sent := slices.DeleteFunc(slices.Clone(c.writes), func(w *topicpb.Write) bool { return w.Subresource != "status" })
	if len(sent) != pods {
		t.Errorf("%d writes were sent, want the last of each of %d pods", len(sent), pods)
	}
	for i := range pods {
		have, ok := c.objects[ref("pods", "default", fmt.Sprint(i))].obj.(*corev1.Pod)
		if want := fmt.Sprintf("%08d", changes-pods+i); !ok || have.Status.Message != want {
			t.Errorf("pod %d: the cloud has %q, want %q", i, have.Status.Message, want)
		}
	}
}
