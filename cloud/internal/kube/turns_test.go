package kube_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skerry-io/skerry/cloud/internal/kube"
)

func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := kube.NewTurns(2)
		began := make(chan int, 10)
		for i := range 10 {
			x.Do(func() {
				began <- i
				time.Sleep(time.Second)
			})
		}
		for round := range 5 {
			synctest.Wait()
			got := []int{}
			for len(began) > 0 {
				got = append(got, <-began)
			}
			slices.Sort(got)
			if want := []int{2 * round, 2*round + 1}; !slices.Equal(got, want) {
				t.Errorf("in second %d began %v, want %v", round, got, want)
			}
			time.Sleep(time.Second)
		}
		ran := false
		x.Do(func() { ran = true })
		synctest.Wait()
		if !ran {
			t.Error("nobody runs any more")
		}
	})
}
