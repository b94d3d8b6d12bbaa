package route_test

import (
	"fmt"
	"testing"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// BenchmarkAll measures the start of a node with n routes in its store and an empty kernel, until
// the kernel has all of them.
func BenchmarkAll(b *testing.B) {
	for _, n := range []int{100, 2000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				l := benchLab(b, n)
				b.StartTimer()
				l.start(false)
				l.until("all routes", func() error { return l.count(n) })
				b.StopTimer()
				l.stop()
				b.StartTimer()
			}
		})
	}
}

// BenchmarkOne is one change of one route on a node that has n: from the object to the report that
// the kernel has it.
func BenchmarkOne(b *testing.B) {
	for _, n := range []int{1, 100, 2000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			l := benchLab(b, n)
			l.tune = nil
			l.start(false)
			l.until("all routes", func() error {
				if s := l.agent.Summary(); s.Applied != n {
					return fmt.Errorf("%d of %d", s.Applied, n)
				}
				return nil
			})
			generation := int64(1)
			for b.Loop() {
				s := spec("172.24.0.0/32", fmt.Sprintf("10.0.%d.1", generation%2))
				l.api.route(b, "r0", s)
				generation++
				for l.last("r0").ObservedGeneration != generation || l.last("r0").Reason != v1alpha1.RouteApplied {
					<-l.notified
				}
			}
		})
	}
}

func benchLab(b *testing.B, n int) *system {
	l := newSystem(b)
	for i := range n {
		l.api.route(b, fmt.Sprint("r", i), spec(fmt.Sprintf("172.24.%d.%d/32", i>>8, i&255), "10.0.1.1"))
	}
	return l
}

func (l *system) count(n int) error {
	if got := len(l.routes()); got != n {
		return fmt.Errorf("%d routes of %d", got, n)
	}
	return nil
}
