package kube_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

func TestLimitedQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := kube.NewLimitedQueue(2, 1)
		began := make(chan int, 10)
		for i := range 10 {
			q.Do(fmt.Sprint("node", i%3), func() {
				began <- i
				time.Sleep(time.Second)
			})
		}
		all := []int{}
		for round := range 5 {
			synctest.Wait()
			got := []int{}
			for len(began) > 0 {
				got = append(got, <-began)
			}
			if len(got) != 2 {
				t.Errorf("in second %d began %v, want two", round, got)
			}
			all = append(all, got...)
			time.Sleep(time.Second)
		}
		slices.Sort(all)
		want(t, "all ran, each once", all, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
		ran := false
		q.Do("node1", func() { ran = true })
		synctest.Wait()
		if !ran {
			t.Error("a queue that was empty runs nothing any more")
		}
	})
}

// One node with thousands of functions holds another up by one turn; a dropped function never runs.
func TestLimitedQueueIsFairBetweenNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := kube.NewLimitedQueue(1, 32)
		var order []string
		add := func(key string) *kube.Waiting {
			return q.Do(key, func() {
				time.Sleep(time.Millisecond)
				order = append(order, key)
			})
		}
		var flood []*kube.Waiting
		for range 4096 {
			flood = append(flood, add("hostile"))
		}
		add("other")
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		if i := slices.Index(order, "other"); i < 0 || i > 33 {
			t.Errorf("the other node was number %d of %d", i, len(order))
		}
		for _, w := range flood {
			w.Drop()
			w.Drop()
		}
		synctest.Wait()
		before := len(order)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := len(order) - before; got > 1 { // the one that ran already
			t.Errorf("%d functions ran after they were dropped", got)
		}
		want(t, "waiting", q.Len(), 0)
	})
}
