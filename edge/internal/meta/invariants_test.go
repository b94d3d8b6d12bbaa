package meta_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skerry-io/skerry/edge/internal/meta"
)

// Invariants 2 and 3 of docs/ARCHITECTURE.md at the moment between a State's arrival and the disk:
// nothing of it is acknowledged or shown before it is stored.
func TestClaims_23_StateIsAcknowledgedOnceItIsStored(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var slow atomic.Bool
		c := newCloud(t)
		e := newEdge(t, c, meta.Config{At: func(p meta.Point) {
			if p == meta.PointStaged && slow.Load() {
				time.Sleep(time.Minute) // a disk that takes its time
			}
		}})
		c.link()
		e.holdPods()
		settle()
		acked := func() uint64 {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.acked
		}
		before := acked()
		if before == 0 {
			t.Fatal("nothing was acknowledged so far")
		}
		slow.Store(true)
		c.set(ref("pods", "default", "late"), pod())
		time.Sleep(30 * time.Second)
		if got := acked(); got != before {
			t.Errorf("acknowledged %d while the disk has not got it, %d before", got, before)
		}
		if _, err := e.Get(context.Background(), ref("pods", "default", "late"), meta.Caller{}); err == nil {
			t.Error("shown while the disk has not got it")
		}
		time.Sleep(2 * time.Minute)
		slow.Store(false)
		settle()
		if acked() == before {
			t.Error("never acknowledged")
		}
		if _, err := e.Get(context.Background(), ref("pods", "default", "late"), meta.Caller{}); err != nil {
			t.Errorf("never shown: %v", err)
		}
	})
}
