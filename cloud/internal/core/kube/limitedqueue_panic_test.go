package kube_test

import (
	"testing"
	"testing/synctest"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

// A worker that panics costs its function, and neither the process nor the worker's place.
func TestClaims_12_PanicInAQueueCostsItsFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := kube.NewLimitedQueue(1, 1)
		ran := false
		q.Do("a", func() { panic("a defect") })
		q.Do("a", func() { ran = true })
		synctest.Wait()
		if !ran {
			t.Error("what waited behind it was not run")
		}
	})
}
