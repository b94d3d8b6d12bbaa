package nodemetrics_test

import (
	"testing"

	"github.com/skerry-io/skerry/edge/internal/optional/nodemetrics"
)

// Growth is seen for 60 samples, also that of before the first sample.
func TestIncrease(t *testing.T) {
	var i nodemetrics.Increase
	for sample := 1; sample <= 200; sample++ {
		value, want := 5.0, 0.0
		if sample <= 60 {
			want = 5
		}
		if sample >= 100 {
			value += 7
			if sample < 160 {
				want = 7
			}
		}
		if got := i.Sample(value); got != want {
			t.Fatalf("sample %d: %v, want %v", sample, got, want)
		}
	}
}
