package publish

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &turns{free: 2}
		began := make(chan int, 10)
		for i := range 10 {
			x.do(func() {
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
		synctest.Wait()
		if x.free != 2 || x.line != nil {
			t.Errorf("at the end %d are free, and %d in line", x.free, len(x.line))
		}
	})
}
