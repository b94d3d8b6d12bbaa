package publish

import (
	"context"
	"testing"
)

func TestTurns(t *testing.T) {
	x := &turns{free: 1}
	first, second, third := x.enter(), x.enter(), x.enter()
	ended, end := context.WithCancel(t.Context())
	end()
	if !x.await(t.Context(), first) {
		t.Fatal("the first has no turn")
	}
	if x.await(ended, second) {
		t.Fatal("the second has its turn before the first left")
	}
	x.leave()
	if !x.await(t.Context(), third) { // the second has given its place up
		t.Fatal("the third has no turn")
	}
	fourth := x.enter()
	x.leave() // the fourth's turn has come
	if x.await(ended, fourth) {
		x.leave()
	}
	if fifth := x.enter(); !x.await(t.Context(), fifth) || len(x.line) != 0 || x.free != 0 {
		t.Errorf("after all have left there are %d free and %d in line", x.free, len(x.line))
	}
}
