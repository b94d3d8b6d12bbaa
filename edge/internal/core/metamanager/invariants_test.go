package metamanager_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
)

// Invariants 2 and 3 of docs/dev/ARCHITECTURE.md at the moment between a State's arrival and the
// disk: it is not acknowledged or visible before it is stored.
func TestClaims_23_StateIsAcknowledgedOnceItIsStored(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var slow atomic.Bool
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{At: func(p metamanager.Point) {
			if p == metamanager.PointStaged && slow.Load() {
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
		if _, err := e.Get(context.Background(), ref("pods", "default", "late"), metamanager.Caller{}); err == nil {
			t.Error("shown while the disk has not got it")
		}
		time.Sleep(2 * time.Minute)
		slow.Store(false)
		settle()
		if acked() == before {
			t.Error("never acknowledged")
		}
		if _, err := e.Get(context.Background(), ref("pods", "default", "late"), metamanager.Caller{}); err != nil {
			t.Errorf("never shown: %v", err)
		}
	})
}

// A pod with a finalizer that its kubelet has deleted stays, as in the cluster, until the finalizer
// is gone: it does not vanish from the device's API.
func TestClaims_21_PodWithAFinalizerIsShownUntilItGoes(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{})
		at := metav1.NewTime(time.Now())
		c.set(ref("pods", "default", "kept"), pod(func(p *corev1.Pod) { p.Finalizers, p.DeletionTimestamp = []string{"example.com/log"}, &at }))
		c.set(ref("pods", "default", "plain"), pod(func(p *corev1.Pod) { p.DeletionTimestamp = &at }))
		c.link()
		e.holdPods()
		settle()
		c.cut()
		settle()
		for range 3 { // a kubelet that starts again reports it again
			if err := e.deletePod("kept"); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.deletePod("plain"); err != nil {
			t.Fatal(err)
		}
		shown := func(name string) bool {
			_, err := e.Get(context.Background(), ref("pods", "default", name), metamanager.Caller{})
			return err == nil
		}
		if !shown("kept") || shown("plain") {
			t.Errorf("the one with a finalizer is shown: %v, the other: %v", shown("kept"), shown("plain"))
		}
		if got := e.Status().Outbox.Waiting["POD"]; got != 2 {
			t.Errorf("%d deletions wait, want one of each", got)
		}
	})
}
